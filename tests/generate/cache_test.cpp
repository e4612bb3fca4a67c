// The cache of a generator keeps keys, shares prompts and reads them in pieces without changing bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "generate/machine.hpp"

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
  GenerationRequest request = request_of(20);
  request.sampling.temperature = 0;
  for (int32_t p = 0; p < 4; ++p) {  // more than a pass reads
    std::vector<int32_t>& prompt = request.prompts.emplace_back(20);
    std::iota(prompt.begin(), prompt.end(), 7 * p);
  }
  std::vector<CachePolicy> policies = {policy_of(Kind::h2o, 0.4, 0.3)};
  if (device_memory_is_host()) policies = {policy_of(Kind::h2o, 3, 2), policies[0], policy_of(Kind::window, 1, 4)};
  for (const CachePolicy& policy : policies) {
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
  const auto bytes = [](int64_t context, const CachePolicy& policy) {
    Machine machine(llama, DType::f32, 4, context, true, {}, 0, policy);
    return machine.plan().bytes(MemoryCategory::kv_cache);
  };
  const CachePolicy part = policy_of(Kind::window, 4, 16);
  EXPECT_EQ(bytes(64, part), bytes(128, part));
  EXPECT_GT(bytes(128, {}), 3 * bytes(128, part));
  EXPECT_GT(bytes(128, {}), bytes(64, {}));
}

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
