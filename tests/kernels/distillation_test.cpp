// Divergences from a teacher and their gradients equal TRL's and torch's (tests/reference/distillation), for all words
// and for the best ones, whatever the padding, the dtype of gradients and the words that the models have in common.

#include "kernels/distillation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

const nlohmann::json& golden() {
  static const auto file = nlohmann::json::parse(std::ifstream("tests/reference/distillation/divergences.json"));
  return file;
}

constexpr int64_t rows = 5, vocabulary = 21, stride = 24, counted = 4;

/// [rows, from] -> [rows, to], by `rest` or without the last columns.
Values with_columns(const Values& values, int64_t from, int64_t to, double rest) {
  Values all;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < to; ++i) all.push_back(i < from ? values[static_cast<size_t>(r * from + i)] : rest);
  }
  return all;
}

/// One block of rows through the kernels, as the head of a student calls them.
struct Block {
  struct Options {
    bool aliased = true;
    DType dtype = DType::f32;
    int64_t words = vocabulary;
    float softcap = 0;
  };

  Block(const DistillationTerms& terms, int64_t top_k) : Block(terms, top_k, Options()) {}
  Block(const DistillationTerms& terms, int64_t top_k, const Options& options) {
    // Padding is larger than all logits, so that it would show.
    const Array logits(DType::f32, {rows, stride},
                       with_columns(golden()["student"].get<Values>(), vocabulary, stride, 50));
    const Array taught(DType::f32, {rows, stride},
                       with_columns(golden()["teacher"].get<Values>(), vocabulary, stride, 50));
    const Values targets = golden()["targets"].get<Values>();
    Values weights;
    for (const double target : targets) weights.push_back(target >= 0 ? -1.0 / counted : 0);
    const Array of_targets(DType::i32, {rows}, targets), weight(DType::f32, {rows}, weights);
    const Array logp(DType::f32, {rows}), lse(DType::f32, {rows});
    const Array distilled(DType::f32, {rows}), divergence(DType::f32, {rows}), left_out(DType::f32, {rows}),
        agreement(DType::f32, {rows});
    TokenStatistics statistics{logp, lse, {}, {}};
    logprob_forward(statistics, logits, of_targets, vocabulary, test::stream());
    statistics.distilled = distilled;
    statistics.divergence = divergence;
    statistics.left_out = left_out;
    statistics.agreement = agreement;
    log_probabilities(taught, options.words, terms.temperature, test::stream());
    const Array best(DType::i32, {rows, std::max<int64_t>(top_k, 1)}),
        of_best(DType::f32, {rows, std::max<int64_t>(top_k, 1)}), rest(DType::f32, {rows});
    TeacherRows teacher{{}, taught, {}};
    if (top_k > 0) {
      teacher = {best, of_best, rest};
      top_tokens(teacher, taught, options.words, test::stream());
    }
    TokenCotangents cotangents;
    cotangents.logp = weight;
    const Array own(options.dtype, {rows, stride});
    const Tensor dlogits = options.aliased ? logits.tensor() : own.tensor();
    distillation_backward(dlogits, logits, of_targets, statistics, cotangents, teacher, options.words, vocabulary,
                          terms, options.softcap, test::stream());
    test::stream().synchronize();
    gradient = options.aliased ? logits.values() : own.values();
    const auto mean = [&](const Array& values) {
      double sum = 0;
      for (const double one : values.values()) sum += one;
      return sum / counted;
    };
    value = mean(distilled);
    plain = mean(divergence);
    outside = mean(left_out);
    agreeing = mean(agreement);
  }

  Values gradient;
  double value, plain, outside, agreeing;
};

double difference(const Values& found, const Values& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
  return largest;
}

DistillationTerms terms_of(const nlohmann::json& c) {
  const std::string name = c["loss"];
  const Divergence loss = name == "jsd"          ? Divergence::jsd
                          : name == "reverse_kl" ? Divergence::reverse_kl
                                                 : Divergence::forward_kl;
  return {loss, c["beta"].get<float>(), c["temperature"].get<float>(), c["tail"].get<bool>(), 0};
}

TEST(Distillation, LossesAndGradientsEqualTorch) {
  for (const nlohmann::json& c : golden()["cases"]) {
    const std::string name = c.dump().substr(0, 100);
    const Values expected = with_columns(c["gradient"].get<Values>(), vocabulary, stride, 0);
    const Block block(terms_of(c), c["top_k"].get<int64_t>());
    EXPECT_NEAR(block.value, c["value"].get<double>(), 2e-6 * (1 + c["value"].get<double>())) << name;
    EXPECT_EQ(block.plain, block.value) << name;
    EXPECT_NEAR(block.outside, c["left_out"].get<double>(), 1e-6) << name;
    EXPECT_EQ(block.agreeing, golden()["agreement"].get<double>()) << name;
    EXPECT_LT(difference(block.gradient, expected), 5e-7) << name;
    if (c["temperature"] != 1) continue;
    const Block apart(terms_of(c), c["top_k"].get<int64_t>(), {.aliased = false});
    EXPECT_EQ(apart.gradient, block.gradient) << name;
    const Block narrow(terms_of(c), c["top_k"].get<int64_t>(), {.aliased = false, .dtype = DType::bf16});
    EXPECT_LT(difference(narrow.gradient, expected), 2e-3) << name;
  }
}

TEST(Distillation, ControlsDiffer) {
  const DistillationTerms terms{Divergence::jsd, 0.5f, 1, false, 0};
  const Block block(terms, 0);
  DistillationTerms other = terms;
  other.beta = 0.4f;
  EXPECT_GT(difference(Block(other, 0).gradient, block.gradient), 1e-3) << "beta";
  other = terms;
  other.temperature = 1.1f;
  EXPECT_GT(difference(Block(other, 0).gradient, block.gradient), 1e-3) << "temperature";
  EXPECT_GT(difference(Block(terms, 6).gradient, block.gradient), 1e-3) << "top_k";
  other = terms;
  other.tail = true;
  EXPECT_GT(difference(Block(other, 6).gradient, Block(terms, 6).gradient), 1e-3) << "tail";
}

TEST(Distillation, TheCrossEntropyIsAddedAtTemperatureOne) {
  const auto of_data = with_columns(golden()["cross_entropy"]["gradient"].get<Values>(), vocabulary, stride, 0);
  const double value = golden()["cross_entropy"]["value"];
  for (const int64_t top_k : {0, 6, 1}) {
    DistillationTerms terms{Divergence::forward_kl, 0.5f, 2.5f, top_k > 0, 0};
    const Block alone(terms, top_k);
    terms.cross_entropy = 0.75f;
    const Block both(terms, top_k);
    EXPECT_NEAR(both.value, alone.value + 0.75 * value, 2e-6 * (1 + both.value)) << top_k;
    EXPECT_EQ(both.plain, alone.plain) << top_k;
    Values expected = alone.gradient;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += 0.75 * of_data[i];
    EXPECT_LT(difference(both.gradient, expected), 5e-7) << top_k;
  }
}

// Words that the models do not have in common have no part in the divergence, but in the cross-entropy.
TEST(Distillation, OnlyCommonWordsCount) {
  constexpr int64_t words = 13;
  for (const int64_t top_k : {0, 4}) {
    DistillationTerms terms{Divergence::jsd, 0.3f, 1.5f, false, 0};
    const Block block(terms, top_k, {.words = words});
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < stride; ++i) {
        const double g = block.gradient[static_cast<size_t>(r * stride + i)];
        if (i >= words) {
          EXPECT_EQ(g, 0) << i;
        }
        sum += g;
      }
      EXPECT_NEAR(sum, 0, 1e-7);
    }
    terms.cross_entropy = 1;
    const Block both(terms, top_k, {.words = words});
    const auto of_data = with_columns(golden()["cross_entropy"]["gradient"].get<Values>(), vocabulary, stride, 0);
    for (size_t i = 0; i < of_data.size(); ++i) {
      EXPECT_NEAR(both.gradient[i], block.gradient[i] + of_data[i], 5e-7) << i;
    }
  }
}

TEST(Distillation, TheGradientGoesThroughTheCap) {
  constexpr float cap = 30;
  const Values x = golden()["student"].get<Values>();
  for (const int64_t top_k : {0, 6}) {
    const DistillationTerms terms{Divergence::forward_kl, 0.5f, 1, false, 0.5f};
    Values expected = Block(terms, top_k).gradient;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < vocabulary; ++i) {
        const double part = x[static_cast<size_t>(r * vocabulary + i)] / double{cap};
        expected[static_cast<size_t>(r * stride + i)] *= 1 - part * part;
      }
    }
    EXPECT_LT(difference(Block(terms, top_k, {.softcap = cap}).gradient, expected), 1e-7) << top_k;
  }
}

TEST(Distillation, BestWordsAreOrderedAndTheRestIsTheirComplement) {
  constexpr int64_t words = 1003, k = 7;
  Values logits = test::random_values(2 * words, 3, 4);
  logits[5] = logits[900] = 4.5;  // equal: the lower number comes first
  const Array x(DType::f32, {2, words}, logits), best(DType::i32, {2, k}), logp(DType::f32, {2, k}),
      rest(DType::f32, {2});
  log_probabilities(x, words, 1, test::stream());
  const Values all = x.values();
  top_tokens({best, logp, rest}, x, words, test::stream());
  EXPECT_EQ(best.values()[0], 5);
  EXPECT_EQ(best.values()[1], 900);
  for (size_t r = 0; r < 2; ++r) {
    double inside = 0;
    for (size_t i = 0; i < k; ++i) {
      const double own = logp.values()[r * k + i];
      EXPECT_EQ(own, all[r * words + static_cast<size_t>(best.values()[r * k + i])]);
      if (i > 0) {
        EXPECT_LE(own, logp.values()[r * k + i - 1]);
      }
      inside += std::exp(own);
    }
    EXPECT_NEAR(std::exp(rest.values()[r]), 1 - inside, 1e-6);
  }
}

}  // namespace
}  // namespace llmtrain
