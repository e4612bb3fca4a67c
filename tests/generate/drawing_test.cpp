// The tokens of texts are those that the definition draws from their logits, wherever they are drawn.
#include <gtest/gtest.h>

#include <cmath>

#include "generate/machine.hpp"

namespace llmtrain {
namespace {

using test::Machine;
using test::request_of;

/// Tokens of a prompt by its logits, one token after the other.
std::vector<int32_t> tokens_of(const std::vector<float>& logits, const GenerationRequest& request, size_t prompt,
                               const SamplingOptions& sampling) {
  const uint64_t key = random_key(request.seed, RandomPurpose::sampling, static_cast<uint64_t>(request.step), prompt);
  std::vector<int32_t> text = request.prompts[prompt], tokens;
  constexpr size_t width = 64;
  for (size_t begin = 0; begin < logits.size(); begin += width) {
    std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(begin),
                           logits.begin() + static_cast<std::ptrdiff_t>(begin + test::vocabulary));
    penalize_repetition(row, text, sampling.repetition_penalty);
    tokens.push_back(sample_token(row, sampling, random_bits(key, 0, tokens.size())));
    text.push_back(tokens.back());
  }
  return tokens;
}

TEST(Drawing, GivesTheTokensOfTheDefinition) {
  Machine machine({"model.family=llama"}, DType::f32, 5, 48);
  int moved = 0;
  for (const SamplingOptions& sampling :
       std::vector<SamplingOptions>{{.temperature = 0},
                                    {},
                                    {.temperature = 0.8, .top_k = 9},
                                    {.temperature = 1.2, .top_p = 0.9},
                                    {.min_p = 0.05},
                                    {.temperature = 0.9, .repetition_penalty = 1.3}}) {
    GenerationRequest request = request_of(12);
    request.sampling = sampling;
    const auto logits = machine.logits(request);
    const std::vector<Continuation> all = machine.run(request);
    SamplingOptions other = sampling;
    other.temperature += 0.7;
    for (size_t p = 0; p < all.size(); ++p) {
      EXPECT_EQ(all[p].tokens, tokens_of(logits[p], request, p, sampling)) << "prompt " << p;
      moved += all[p].tokens != tokens_of(logits[p], request, p, other) ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 10) << "control: another temperature";
}

// A GPU cannot tell by its sums where top-p cuts equal logits. The host then draws, and what is recorded follows from
// it.
TEST(Drawing, EndsOnTheHostWhatADeviceLeavesUndecided) {
  Machine machine({"model.family=llama", "model.initializer_std=0"}, DType::f32, 5, 48, true, {}, 0, {}, true, true);
  for (const double top_p : {0.5, 1.0}) {
    GenerationRequest request = request_of(8);
    request.sampling.top_p = top_p;
    request.records_logp = true;
    const std::vector<Continuation> all = machine.run_alone(request);
    const int64_t kept = top_p < 1 ? 31 : test::vocabulary;
    for (size_t p = 0; p < all.size(); ++p) {
      EXPECT_EQ(all[p].tokens, tokens_of(std::vector<float>(size_t{64} * 8), request, p, request.sampling));
      ASSERT_EQ(all[p].logp.size(), 8U);
      for (const float logp : all[p].logp) EXPECT_NEAR(logp, -std::log(static_cast<double>(kept)), 1e-6) << top_p;
      EXPECT_EQ(all[p].kept.empty(), top_p == 1) << "control: another distribution";
    }
  }
}

}  // namespace
}  // namespace llmtrain
