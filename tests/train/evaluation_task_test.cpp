#include "tasks/evaluation_task.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace llmtrain {
namespace {

/// Inputs and targets of one row: every token but the first is scored.
HostBatch scored(const std::vector<int32_t>& ids) {
  HostBatch batch;
  batch.ids.assign(ids.begin(), ids.end() - 1);
  batch.targets.assign(ids.begin() + 1, ids.end());
  return batch;
}

TEST(ScoredBytes, AreThoseOfTheTargets) {
  const auto bytes = make_byte_tokenizer();
  HostBatch batch = scored({'a', 'b', 'c', bytes->eos_id(), 'd', 'e'});
  EXPECT_EQ(scored_bytes(*bytes, batch), 4) << "b c d e";
  batch.targets[1] = ignore_target;
  EXPECT_EQ(scored_bytes(*bytes, batch), 3);
  batch.targets.assign(5, ignore_target);
  EXPECT_EQ(scored_bytes(*bytes, batch), 0);
}

TEST(ScoredBytes, OfCharactersAreTheirUtf8) {
  const auto characters = make_char_tokenizer({U'a', U'\u00e9', U'\u20ac'});
  EXPECT_EQ(scored_bytes(*characters, scored({0, 1, 2, 0, 2})), 2 + 3 + 1 + 3);
}

TEST(ScoredBytes, BeginAnewWhereSequencesDo) {
  const auto bytes = make_byte_tokenizer();
  HostBatch batch = scored({'a', 'b', 'c'});
  const HostBatch other = scored({'x', 'y'});
  batch.ids.insert(batch.ids.end(), other.ids.begin(), other.ids.end());
  batch.targets.insert(batch.targets.end(), other.targets.begin(), other.targets.end());
  EXPECT_EQ(scored_bytes(*bytes, batch), 3) << "b c y";
}

TEST(EvaluationReport, ConvertsItsSums) {
  const EvaluationReport report{.loss = std::log(8.0), .tokens = 10, .correct = 4, .bytes = 10};
  EXPECT_NEAR(report.perplexity(), 8, 1e-12);
  EXPECT_DOUBLE_EQ(report.token_accuracy(), 0.4);
  EXPECT_NEAR(report.bits_per_byte(), 3, 1e-12);
  EXPECT_EQ((EvaluationReport{.loss = 1, .tokens = 1}).bits_per_byte(), 0);
}

}  // namespace
}  // namespace llmtrain
