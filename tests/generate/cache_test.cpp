// The cache of a generator keeps keys, shares prompts and reads them in pieces without changing bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "generate/machine.hpp"
#include "kernels/attention_cached.hpp"
#include "kernels/attention_kept.hpp"

namespace llmtrain {
namespace {

using test::Machine;
using test::request_of;
using test::stream;
using Kind = CachePolicy::Kind;

const std::vector<std::string> llama = {"model.family=llama", "model.n_kv_heads=2", "model.max_seq_len=128"};

std::vector<std::vector<int32_t>> tokens_of(std::vector<Continuation> all) {
  std::vector<std::vector<int32_t>> tokens;
  for (Continuation& one : all) tokens.push_back(std::move(one.tokens));
  return tokens;
}

TEST(PromptsInPieces, HaveTheBitsOfWholePrompts) {
  GenerationRequest request = request_of(6);
  request.sampling.temperature = 0;
  request.gives_logp = true;
  const auto logp_of = [](std::vector<Continuation> all) {
    std::vector<std::vector<float>> values;
    for (Continuation& one : all) values.push_back(std::move(one.logp));
    return values;
  };
  for (const DType compute : {DType::f32, DType::bf16}) {
    Machine whole(llama, compute, 5, 48), pieces(llama, compute, 5, 48, true, {}, 5);
    const auto expected = logp_of(whole.run(request));
    EXPECT_EQ(logp_of(pieces.run(request)), expected) << name_of(compute);
    EXPECT_LT(pieces.plan().bytes(), whole.plan().bytes());
    request.prompts[2][0] += 1;
    EXPECT_NE(logp_of(pieces.run(request)), expected) << "control";
    request.prompts[2][0] -= 1;
  }
}

TEST(SamplesOfAPrompt, ShareItsPass) {
  Machine apart(llama, DType::f32, 1, 48), together(llama, DType::f32, 7, 48, true, {}, 5);
  GenerationRequest request = request_of(6);
  request.samples = 3;
  const auto expected = tokens_of(apart.run(request));
  apart.logits(request);
  EXPECT_EQ(tokens_of(together.run(request)), expected);
  together.logits(request);
  EXPECT_LT(together.logit_rows(), apart.logit_rows()) << "some first tokens are drawn from one row";
  int different = 0;
  for (size_t i = 0; i < expected.size(); i += 3) different += expected[i] != expected[i + 1] ? 1 : 0;
  EXPECT_EQ(different, 5);
}

TEST(Beams, DoNotDependOnTheTextsBeside) {
  GenerationRequest request = request_of(12);
  request.beams.beams = 3;
  request.samples = 2;
  request.eos = {4, 9};
  Machine alone(llama, DType::f32, 3, 48), together(llama, DType::f32, 11, 48, true, {}, 6);
  const auto expected = tokens_of(alone.run(request));
  ASSERT_EQ(expected.size(), 10U);
  EXPECT_EQ(tokens_of(together.run(request)), expected);
  request.beams.beams = 2;
  EXPECT_NE(tokens_of(together.run(request)), expected) << "control";
}

CachePolicy policy_of(Kind kind, double heavy, double recent) {
  CachePolicy policy;
  policy.kind = kind;
  policy.heavy = heavy;
  policy.recent = recent;
  policy.sinks = static_cast<int64_t>(heavy);
  policy.window = static_cast<int64_t>(recent);
  return policy;
}

TEST(PartOfTheCache, WithRoomForEverythingHasTheBitsOfAll) {
  if (!device_memory_is_host()) GTEST_SKIP() << "a GPU keeps every key";
  GenerationRequest request = request_of(20);
  request.sampling.temperature = 0;
  for (const DType compute : {DType::f32, DType::bf16}) {
    const auto expected = Machine(llama, compute, 5, 48).logits(request);
    for (const Kind kind : {Kind::h2o, Kind::window}) {
      Machine enough(llama, compute, 5, 48, true, {}, 0, policy_of(kind, 20, 28));
      EXPECT_TRUE(enough.logits(request) == expected) << name_of(kind);
      Machine few(llama, compute, 5, 48, true, {}, 0, policy_of(kind, 2, 6));
      EXPECT_FALSE(few.logits(request) == expected) << "control: keys are left out";
    }
  }
}

TEST(PartOfTheCache, OfATextDoesNotDependOnTheOthers) {
  if (!device_memory_is_host()) GTEST_SKIP() << "a GPU keeps every key";
  GenerationRequest request = request_of(20);
  request.sampling.temperature = 0;
  for (int32_t p = 0; p < 4; ++p) {  // more than a pass reads
    std::vector<int32_t>& prompt = request.prompts.emplace_back(20);
    std::iota(prompt.begin(), prompt.end(), 7 * p);
  }
  for (const CachePolicy& policy :
       {policy_of(Kind::h2o, 3, 2), policy_of(Kind::h2o, 0.4, 0.3), policy_of(Kind::window, 1, 4)}) {
    Machine machine(llama, DType::f32, 9, 48, true, {}, 0, policy);
    const auto together = machine.logits(request);
    for (size_t p = 0; p < request.prompts.size(); ++p) {
      GenerationRequest alone = request;
      alone.prompts = {request.prompts[p]};
      EXPECT_TRUE(machine.logits(alone)[0] == together[p]) << "prompt " << p;
    }
    request.samples = 2;
    request.sampling.temperature = 1;
    Machine apart(llama, DType::f32, 1, 48, true, {}, 0, policy);
    EXPECT_EQ(tokens_of(machine.run(request)), tokens_of(apart.run(request))) << "samples share a prompt";
    request.samples = 1;
    request.sampling.temperature = 0;
  }
}

TEST(PartOfTheCache, HasMemoryThatDoesNotGrowWithTheText) {
  if (!device_memory_is_host()) GTEST_SKIP() << "a GPU keeps every key";
  const auto bytes = [](int64_t context, const CachePolicy& policy) {
    Machine machine(llama, DType::f32, 4, context, true, {}, 0, policy);
    return machine.plan().bytes(MemoryCategory::kv_cache);
  };
  const CachePolicy part = policy_of(Kind::window, 4, 16);
  EXPECT_EQ(bytes(64, part), bytes(128, part));
  EXPECT_GT(bytes(128, {}), 3 * bytes(128, part));
  EXPECT_GT(bytes(128, {}), bytes(64, {}));
}

/// One layer of attention with grouped keys, step by step, as the definition says.
class KeptKeysTest : public testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t texts = 2, heads = 4, groups = 2, width = 5, places = 8, prompt = 11, steps = 9;
  static constexpr int64_t row = (heads + 2 * groups) * width;
  static constexpr std::array<int32_t, 2> budget = {6, 3};  // of which three are the last ones

  KeptKeysTest() {
    shape.heads = heads;
    shape.kv_heads = groups;
    shape.head_dim = width;
    shape.scale = 0.7F;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<float>(4 * random_uniform(random_bits(5, 0, i)) - 2);
    }
  }
  const float* query(int64_t t, int64_t h) const { return all.data() + t * row + h * width; }
  const float* key(int64_t t, int64_t g) const { return all.data() + t * row + (heads + g) * width; }

  /// Probabilities of the positions `kept` for the query heads of g at position t, summed.
  std::vector<double> weigh(int64_t t, int64_t g, const std::vector<int64_t>& kept) const {
    std::vector<double> sums(kept.size());
    for (int64_t h = g * heads / groups; h < (g + 1) * heads / groups; ++h) {
      std::vector<double> p(kept.size());
      for (size_t j = 0; j < kept.size(); ++j) {
        const double product = std::inner_product(query(t, h), query(t, h) + width, key(kept[j], g), 0.0);
        p[j] = std::exp(shape.scale * product);
      }
      const double total = std::accumulate(p.begin(), p.end(), 0.0);
      for (size_t j = 0; j < kept.size(); ++j) sums[j] += p[j] / total;
    }
    return sums;
  }
  /// Positions that are kept of key head g after each new token, sorted.
  std::vector<std::vector<int64_t>> expected(int64_t g, int64_t sinks) const {
    std::vector<double> sums(static_cast<size_t>(prompt + steps));
    std::vector<int64_t> kept;
    std::vector<std::vector<int64_t>> after;
    const auto shrink = [&](int64_t t) {
      while (std::ssize(kept) > budget[0]) {
        const auto worth = [&](int64_t p) {
          if (p > t - budget[1]) return 1e9;
          return sinks < 0 ? sums[static_cast<size_t>(p)] : p < sinks ? 1e8 : static_cast<double>(p);
        };
        kept.erase(std::ranges::min_element(kept, {}, worth));
      }
    };
    for (int64_t t = 0; t < prompt + steps; ++t) {
      kept.push_back(t);
      const std::vector<double> more = weigh(t, g, kept);
      for (size_t j = 0; j < kept.size(); ++j) sums[static_cast<size_t>(kept[j])] += more[j];
      if (t >= prompt - 1) shrink(t);
      if (t >= prompt - 1) after.push_back(kept);
    }
    return after;
  }

  AttentionShape shape;
  std::vector<float> all = std::vector<float>(static_cast<size_t>((prompt + steps) * row));
};

TEST_P(KeptKeysTest, AreThoseOfTheDefinition) {
  if (!device_memory_is_host()) GTEST_SKIP() << "a GPU keeps every key";
  std::vector<float> cache(texts * places * 2 * groups * width), sums(texts * groups * places), lse(heads * prompt);
  std::vector<int32_t> positions(texts * groups * places), holes(texts * groups), counts(1);
  std::vector<int32_t> budgets = {0, 0, budget[0], budget[1]};
  KeptKeys kept;
  kept.cache = Tensor(cache.data(), DType::f32, {texts, places, 2 * groups * width});
  kept.sums = Tensor(sums.data(), DType::f32, {texts, groups, places});
  kept.positions = Tensor(positions.data(), DType::i32, {texts, groups, places});
  kept.holes = Tensor(holes.data(), DType::i32, {texts, groups});
  kept.budgets = Tensor(budgets.data(), DType::i32, {texts, 2});
  kept.sinks = GetParam();
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < prompt; ++t) {
      double total = 0;
      for (int64_t j = 0; j <= t; ++j) {
        const float* k = key(j, h / (heads / groups));
        total += std::exp(shape.scale * std::inner_product(query(t, h), query(t, h) + width, k, 0.0));
      }
      lse[static_cast<size_t>(h * prompt + t)] = static_cast<float>(std::log(total));
    }
  }
  std::vector<int64_t> ids(prompt, 1);
  std::vector<int32_t> segments = {0, prompt}, position(1);
  Batch batch;
  batch.tokens = prompt;
  batch.segment_count = 1;
  batch.segments = Tensor(segments.data(), DType::i32, {2});
  batch.sequence_ids = Tensor(ids.data(), DType::i64, {prompt});
  batch.positions = Tensor(position.data(), DType::i32, {1});
  keep_prompt_keys(kept, Tensor(all.data(), DType::f32, {prompt, row}), Tensor(lse.data(), DType::f32, {heads, prompt}),
                   batch, shape, stream());
  const auto found = [&](int64_t g) {
    std::vector<int64_t> at;
    for (int32_t place = 0; place <= budget[0]; ++place) {
      if (place != holes[static_cast<size_t>(groups + g)]) {
        at.push_back(positions[static_cast<size_t>((groups + g) * places + place)]);
      }
    }
    std::ranges::sort(at);
    return at;
  };
  std::vector<std::vector<std::vector<int64_t>>> wanted;
  for (int64_t g = 0; g < groups; ++g) wanted.push_back(expected(g, GetParam()));
  for (size_t g = 0; g < groups; ++g) EXPECT_EQ(found(static_cast<int64_t>(g)), wanted[g][0]) << "after the prompt";
  batch.tokens = 1;
  const Tensor places_read(counts.data(), DType::i32, {1});
  for (int64_t t = prompt; t < prompt + steps; ++t) {
    position[0] = static_cast<int32_t>(t);
    const Tensor qkv(all.data() + t * row, DType::f32, {1, row});
    store_kept_keys(kept, places_read, qkv, batch, shape, stream());
    EXPECT_EQ(counts[0], budget[0]);
    weigh_kept_keys(kept, places_read, qkv, batch, shape, stream());
    for (size_t g = 0; g < groups; ++g) {
      EXPECT_EQ(found(static_cast<int64_t>(g)), wanted[g][static_cast<size_t>(t - prompt + 1)]) << "head " << g;
    }
  }
  if (GetParam() < 0) {
    EXPECT_NE(wanted[0], wanted[1]) << "heads differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, KeptKeysTest, testing::Values(-1, 2));

TEST(Sampling, SequencesOfTokensDoNotOccurTwice) {
  std::vector<float> logits(5, 1.0F);
  const std::vector<int32_t> text = {1, 2, 3, 1, 2, 4, 1, 2};
  exclude_repeated_ngrams(logits, text, 3);
  EXPECT_EQ(logits, (std::vector<float>{1, 1, 1, -INFINITY, -INFINITY}));
  logits.assign(5, 1.0F);
  exclude_repeated_ngrams(logits, text, 4);
  EXPECT_EQ(logits, std::vector<float>(5, 1.0F)) << "control: no sequence of three tokens occurs again";
  exclude_repeated_ngrams(logits, std::vector<int32_t>{0, 1, 2, 3}, 1);
  EXPECT_EQ(logits, (std::vector<float>{-INFINITY, -INFINITY, -INFINITY, -INFINITY, 1}));
  EXPECT_THROW(exclude_repeated_ngrams(logits, std::vector<int32_t>{4, 3, 2, 1, 0}, 1), UserError);
}

}  // namespace
}  // namespace llmtrain
