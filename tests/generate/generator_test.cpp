#include "generate/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "generate/machine.hpp"

namespace llmtrain {
namespace {

using test::config_of;
using test::Machine;
using test::request_of;
using test::vocabulary;

/// A model with latent attention, experts and a bias of their choice.
const std::vector<std::string> deepseek_v3 = {
    "model.family=deepseek_v3", "model.q_lora_rank=14",      "model.kv_lora_rank=10",
    "model.qk_nope_head_dim=7", "model.qk_rope_head_dim=4",  "model.v_head_dim=9",
    "model.n_experts=4",        "model.experts_per_token=2", "model.dense_layers=1"};

/// Adapters of all layers, the head's among them; those of embeddings have no magnitudes.
AdapterRule every_layer(bool dora) {
  return [dora](const std::string& module) -> std::optional<AdapterShape> {
    const auto names_module = [&](std::string_view name) { return module.ends_with(name); };
    const bool table = std::ranges::any_of(std::array{"wte", "wpe", "embed_tokens"}, names_module);
    if (dora && table) return std::nullopt;
    return AdapterShape{.rank = 3, .dora = dora};
  };
}

TEST(GenerationWithAdapters, WithACacheEqualsThatWithout) {
  const std::vector<std::string> keys = {"model.family=gpt2"};
  const GenerationRequest request = request_of(12);
  const auto tokens_of = [&](Machine&& machine) {
    std::vector<std::vector<int32_t>> tokens;
    for (Continuation& c : machine.run(request)) tokens.push_back(std::move(c.tokens));
    return tokens;
  };
  const auto base = tokens_of({keys, DType::f32, 3, 48});
  for (const bool dora : {false, true}) {
    const auto cached = tokens_of({keys, DType::f32, 3, 48, true, every_layer(dora)});
    EXPECT_EQ(cached, tokens_of({keys, DType::f32, 1, 48, false, every_layer(dora)}));
    EXPECT_NE(cached, base) << "control";
  }
}

TEST(GenerationWithAdapters, BitsOfATextDoNotDependOnTheOthers) {
  const std::vector<std::string> keys = {"model.family=llama"};
  GenerationRequest request = request_of(6);
  request.sampling.temperature = 0;
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const bool dora : {false, true}) {
      Machine machine(keys, compute, 5, 48, true, every_layer(dora));
      const auto together = machine.logits(request);
      for (size_t p = 0; p < request.prompts.size(); ++p) {
        GenerationRequest alone = request;
        alone.prompts = {request.prompts[p]};
        EXPECT_EQ(machine.logits(alone)[0], together[p]) << "prompt " << p << ", " << name_of(compute);
      }
      EXPECT_EQ(machine.logits(request, true) == together, device_memory_is_host())
          << "on a GPU products like those of training are the control";
      EXPECT_NE(together[0], together[1]) << "control: another text";
    }
  }
}

class Generation : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Generation, WithACacheEqualsThatWithout) {
  Machine machine(GetParam(), DType::f32, 3, 48);
  Machine plain(GetParam(), DType::f32, 1, 48, false);  // each text alone, the whole text for each token
  for (const double temperature : {0.0, 1.0}) {
    GenerationRequest request = request_of(30);
    request.sampling.temperature = temperature;
    const std::vector<Continuation> all = machine.run(request), expected = plain.run(request);
    ASSERT_EQ(all.size(), request.prompts.size());
    int distinct = 0;
    for (size_t p = 0; p < all.size(); ++p) {
      EXPECT_EQ(all[p].tokens.size(), 30U);
      EXPECT_EQ(all[p].end, GenerationEnd::length);
      EXPECT_EQ(all[p].tokens, expected[p].tokens) << "prompt " << p << ", temperature " << temperature;
      for (size_t i = 1; i < all[p].tokens.size(); ++i) distinct += all[p].tokens[i] != all[p].tokens[i - 1] ? 1 : 0;
    }
    EXPECT_GT(distinct, 30) << "a text of one token over and over tests nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Generation,
    testing::Values(
        std::vector<std::string>{"model.family=gpt2"},
        std::vector<std::string>{"model.family=llama", "model.n_kv_heads=2"},
        std::vector<std::string>{"model.family=llama", "model.n_kv_heads=1", "model.sliding_window=7"},
        std::vector<std::string>{"model.family=qwen3", "model.head_dim=10"},
        std::vector<std::string>{"model.family=gemma2", "model.sliding_window=9", "model.tie_embeddings=false"},
        std::vector<std::string>{"model.family=gemma3", "model.sliding_window=9", "model.sliding_window_layers=0",
                                 "model.rope_local_theta=50", "model.tie_embeddings=false"},
        std::vector<std::string>{"model.family=gpt_neox", "model.partial_rotary_factor=0.7"},
        std::vector<std::string>{"model.family=falcon", "model.n_kv_heads=2", "model.shared_norm=false"},
        std::vector<std::string>{"model.family=falcon", "model.n_kv_heads=1"},
        std::vector<std::string>{"model.family=olmo2"},
        std::vector<std::string>{"model.family=granite", "model.tie_embeddings=false"},
        std::vector<std::string>{"model.family=smollm3", "model.no_rope_layers=0"},
        std::vector<std::string>{"model.family=starcoder2", "model.n_kv_heads=2"},
        std::vector<std::string>{"model.family=gpt2", "model.pre_norm=false"}, deepseek_v3));

/// Prompts of 1 to 70 tokens.
GenerationRequest request_of_company(size_t prompts) {
  GenerationRequest request = request_of(5);
  request.sampling.temperature = 0;
  request.prompts.clear();
  for (size_t p = 0; p < prompts; ++p) {
    constexpr size_t lengths[] = {1, 70, 3, 5, 65};  // few: oneDNN makes kernels for each number of rows
    std::vector<int32_t> ids(lengths[p % std::size(lengths)]);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(random_bits(11, p, i) % static_cast<uint64_t>(vocabulary));
    }
    request.prompts.push_back(std::move(ids));
  }
  return request;
}

class Company : public testing::TestWithParam<std::tuple<std::vector<std::string>, DType>> {};

TEST_P(Company, LogitsOfATextAreThoseOfTheTextAlone) {
  constexpr size_t most = 33;
  const auto& [keys, compute] = GetParam();
  for (const bool cache : {true, false}) {
    Machine alone(keys, compute, 1, 75, cache), together(keys, compute, most, 90, cache);
    const GenerationRequest all = request_of_company(most);
    std::vector<std::vector<float>> expected;
    for (const auto& prompt : all.prompts) {
      GenerationRequest one = all;
      one.prompts = {prompt};
      expected.push_back(alone.logits(one)[0]);
    }
    bool differs = false;
    for (const size_t count : {size_t{2}, size_t{3}, size_t{5}, size_t{16}, most}) {
      GenerationRequest some = request_of_company(count);
      const std::vector<std::vector<float>> first(expected.begin(),
                                                  expected.begin() + static_cast<std::ptrdiff_t>(count));
      EXPECT_TRUE(together.logits(some) == first) << count << " texts";
      differs |= together.logits(some, true) != first;
    }
    // Without a cache passes are long, with few texts: training then uses the same kernels. On the host it always does.
    EXPECT_TRUE(differs || !cache || device_memory_is_host()) << "the control: products as in training";
    EXPECT_NE(expected[0], expected[1]) << "the control: another text";
    GenerationRequest reversed = all;
    std::reverse(reversed.prompts.begin(), reversed.prompts.end());
    std::vector<std::vector<float>> found = together.logits(reversed);
    std::reverse(found.begin(), found.end());
    EXPECT_TRUE(found == expected) << "in another order";
  }
}

// An inner dimension of several chunks, an odd number of outputs, biases, a tied head; grouped keys, windows, gates.
INSTANTIATE_TEST_SUITE_P(
    Models, Company,
    testing::Combine(testing::Values(std::vector<std::string>{"model.family=gpt2", "model.max_seq_len=128",
                                                              "model.d_ff=1101", "model.n_layers=1"},
                                     std::vector<std::string>{"model.family=llama", "model.n_kv_heads=2",
                                                              "model.n_layers=2", "model.sliding_window=40",
                                                              "model.max_seq_len=128"}),
                     testing::Values(DType::f32, DType::bf16)));

TEST(Generator, EndsAtEosTheContextTheLengthAndWhereItIsTold) {
  Machine machine({"model.family=llama"}, DType::f32, 4, 20);
  GenerationRequest request = request_of(100);
  request.sampling.temperature = 0;
  const std::vector<Continuation> all = machine.run(request);
  for (size_t p = 0; p < all.size(); ++p) {
    EXPECT_EQ(all[p].end, GenerationEnd::context);
    EXPECT_EQ(all[p].tokens.size() + request.prompts[p].size(), 20U);
  }
  const int32_t third = all[0].tokens[2];
  const auto first = std::find(all[0].tokens.begin(), all[0].tokens.end(), third);
  request.eos = {third};
  const std::vector<Continuation> ended = machine.run(request);
  EXPECT_EQ(ended[0].end, GenerationEnd::eos);
  EXPECT_EQ(ended[0].tokens, std::vector<int32_t>(all[0].tokens.begin(), first));
  request.eos.clear();
  std::vector<int> told(request.prompts.size());
  request.on_token = [&](size_t p, int32_t token) {
    EXPECT_EQ(token, all[p].tokens[static_cast<size_t>(told[p])]);
    return ++told[p] < 4 || p != 1;
  };
  const std::vector<Continuation> stopped = machine.run(request);
  EXPECT_EQ(stopped[1].end, GenerationEnd::stopped);
  EXPECT_EQ(stopped[1].tokens.size(), 4U);
  EXPECT_EQ(stopped[0].tokens, all[0].tokens);
}

// On GPUs of two kinds ranks can sample different tokens.
TEST(Generator, GoesOnWithTheTokensThatRanksAgreeOn) {
  Machine machine({"model.family=llama"}, DType::f32, 3, 48);
  GenerationRequest request = request_of(12);
  request.prompts.resize(1);
  request.sampling.temperature = 0;
  const std::vector<int32_t> own = machine.run(request)[0].tokens;
  const int32_t other = (own[2] + 1) % static_cast<int32_t>(vocabulary);
  int asked = 0;
  request.agree = [&](std::span<int32_t> tokens) {
    if (asked++ == 2) tokens[0] = other;
  };
  const std::vector<int32_t> agreed = machine.run(request)[0].tokens;
  EXPECT_EQ(asked, 12);
  std::vector<int32_t> expected = {own[0], own[1], other};
  request.agree = nullptr;
  request.max_new_tokens -= 3;
  request.prompts[0].insert(request.prompts[0].end(), expected.begin(), expected.end());
  const std::vector<int32_t> rest = machine.run(request)[0].tokens;
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(agreed, expected);
}

TEST(Generator, ATextThatSlidesIsReadFromItsLastTokens) {
  Machine machine({"model.family=llama"}, DType::f32, 3, 12, false);
  GenerationRequest request = request_of(30);
  request.sampling.temperature = 0;
  request.slides = true;
  const std::vector<Continuation> all = machine.run(request);
  int checked = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    ASSERT_EQ(all[p].tokens.size(), 30U);
    EXPECT_EQ(all[p].end, GenerationEnd::length);
    std::vector<int32_t> text = request.prompts[p];
    text.insert(text.end(), all[p].tokens.begin(), all[p].tokens.end());
    for (size_t end = text.size() - 1; end > 12; end -= 5, ++checked) {
      GenerationRequest one = request;
      one.max_new_tokens = 1;
      one.prompts = {
          {text.begin() + static_cast<std::ptrdiff_t>(end) - 12, text.begin() + static_cast<std::ptrdiff_t>(end)}};
      EXPECT_EQ(machine.run(one)[0].tokens, std::vector<int32_t>{text[end]}) << "prompt " << p << ", token " << end;
    }
  }
  EXPECT_GT(checked, 15);
}

TEST(Generator, AnotherSeedOrStepDrawsOtherTokens) {
  Machine machine({"model.family=llama"}, DType::f32, 3, 48);
  const GenerationRequest request = request_of(20);
  const std::vector<int32_t> tokens = machine.run(request)[0].tokens;
  EXPECT_EQ(machine.run(request)[0].tokens, tokens);
  GenerationRequest other = request;
  other.seed += 1;
  EXPECT_NE(machine.run(other)[0].tokens, tokens);
  other = request;
  other.step += 1;
  EXPECT_NE(machine.run(other)[0].tokens, tokens);
}

TEST(Generator, NeedsNoMemoryOfTraining) {
  const ModelConfig config = config_of({"model.family=llama"});
  const auto bytes = [&](bool trained, DType compute) {
    ParamStoreOptions options;
    options.compute = compute;
    const std::vector<UnitSpec> units = make_model(config, vocabulary)->units();
    ParamStore params(trained ? units : frozen(units), options);
    Arena arena;
    params.plan(arena);
    return static_cast<double>(arena.bytes());
  };
  EXPECT_NEAR(bytes(false, DType::f32), bytes(true, DType::f32) / 4, 1e3) << "of weights, gradients and two moments";
  EXPECT_NEAR(bytes(false, DType::bf16), bytes(true, DType::bf16) / 9, 1e3) << "no master either";
}

TEST(Generator, APromptLongerThanTheContextIsRefused) {
  Machine machine({"model.family=gpt2"}, DType::f32, 2, 8);
  GenerationRequest request = request_of(3);
  EXPECT_THROW(machine.run(request), UserError);
}

TEST(Sampling, RepetitionIsPenalizedOnce) {
  std::vector<float> logits = {2, -2, 3, 0};
  penalize_repetition(logits, std::vector<int32_t>{0, 1, 0, 9, -1}, 2);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 3, 0}));
}

TEST(Sampling, MinPKeepsWhatIsNearlyAsProbable) {
  const std::vector<float> logits = {0, std::log(0.5F), std::log(0.2F), std::log(0.05F)};
  SamplingOptions options;
  options.min_p = 0.3;
  std::vector<int> counts(4);
  for (uint64_t i = 0; i < 4000; ++i)
    ++counts[static_cast<size_t>(sample_token(logits, options, random_bits(3, 0, i)))];
  EXPECT_EQ(counts[2] + counts[3], 0);
  EXPECT_NEAR(counts[0], 4000.0 * 2 / 3, 150);
  options.min_p = 0.1;  // the control: the third is probable enough, the fourth is not
  counts.assign(4, 0);
  for (uint64_t i = 0; i < 4000; ++i)
    ++counts[static_cast<size_t>(sample_token(logits, options, random_bits(3, 0, i)))];
  EXPECT_NEAR(counts[2], 4000.0 * 0.2 / 1.7, 100);
  EXPECT_EQ(counts[3], 0);
}

}  // namespace
}  // namespace llmtrain
