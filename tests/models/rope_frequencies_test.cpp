// Rope's tables compared with Transformers' frequencies: tests/reference/make_rope_goldens.py.

#include "models/rope/rope_frequencies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "harness/errors.hpp"
#include "harness/harness.hpp"
#include "models/models.hpp"

namespace llmtrain::test {
namespace {

struct FrequencyCase {
  std::string name;
  ModelConfig config;
  int64_t length = 0;
  double factor = 0;
  std::vector<double> inverse;
};

std::vector<FrequencyCase> read_cases() {
  std::ifstream file("tests/reference/rope/frequencies.txt");
  std::vector<FrequencyCase> cases;
  for (std::string head, numbers; std::getline(file, head) && std::getline(file, numbers);) {
    FrequencyCase c;
    const size_t first = head.find(" | "), second = head.find(" | ", first + 3);
    c.name = head.substr(0, first);
    c.config.rope_scaling = DeckValue<RopeScaling>::parse(head.substr(first + 3, second - first - 3), {});
    std::istringstream shape(head.substr(second + 3));
    shape >> c.config.rope_theta >> c.config.head_dim >> c.config.partial_rotary_factor >> c.config.max_seq_len >>
        c.length;
    std::istringstream hex(numbers);
    for (std::string number; hex >> number;) c.inverse.push_back(std::stod(number));
    c.factor = c.inverse.front();
    c.inverse.erase(c.inverse.begin());
    cases.push_back(c);
  }
  return cases;
}

/// cos and sin at position 1 of a document of `length` tokens.
std::vector<float> row_one(const ModelConfig& config, int64_t length) {
  Rope rope = make_rope(config);
  Arena arena;
  rope.plan(arena, length);
  Batch batch;
  batch.tokens = length;
  batch.segment_count = 1;
  arena.add(batch.positions, MemoryCategory::data, "positions", DType::i32, {length});
  arena.add(batch.segments, MemoryCategory::data, "segments", DType::i32, {2});
  DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  std::vector<int32_t> positions(static_cast<size_t>(length)), segments = {0, static_cast<int32_t>(length)};
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  copy_to_device(batch.positions.data, positions.data(), batch.positions.bytes(), stream());
  copy_to_device(batch.segments.data, segments.data(), batch.segments.bytes(), stream());
  stream().synchronize();
  rope.start(stream());
  rope.prepare(batch, 0, stream());
  std::vector<float> row(static_cast<size_t>(rope.table.dim(1)));
  copy_to_host(row.data(), rope.table.rows(1, 1).data, static_cast<int64_t>(row.size() * sizeof(float)), stream());
  stream().synchronize();
  return row;
}

/// Largest error of a row's elements against the case's, relative: Transformers rounds frequencies to fp32 on the way.
double error_of(const ModelConfig& config, const FrequencyCase& c) {
  const std::vector<float> row = row_one(config, c.length);
  const size_t half = c.inverse.size();
  EXPECT_EQ(row.size(), 2 * half);
  double largest = 0;
  for (size_t i = 0; i < half && row.size() == 2 * half; ++i) {
    const double cosine = c.factor * std::cos(c.inverse[i]), sine = c.factor * std::sin(c.inverse[i]);
    largest = larger(largest, std::abs(double{row[i]} - cosine));
    largest = larger(largest, std::abs(double{row[half + i]} - sine) / sine);
  }
  return largest;
}

TEST(RopeFrequencies, AreThoseOfTransformers) {
  const auto cases = read_cases();
  EXPECT_GE(cases.size(), 15u);
  for (const FrequencyCase& c : cases) EXPECT_LT(error_of(c.config, c), 2e-6) << c.name;
}

// Controls: every parameter has an effect.
TEST(RopeFrequencies, AnotherParameterIsSeen) {
  const auto cases = read_cases();
  const auto expect_seen = [&](std::string_view name, const auto& change) {
    for (FrequencyCase c : cases) {
      if (c.name != name) continue;
      change(c.config, c.config.rope_scaling);
      EXPECT_GT(error_of(c.config, c), 1e-4) << name;
    }
  };
  expect_seen("llama_3_1", [](ModelConfig&, RopeScaling& s) { s.factor = 8.1; });
  expect_seen("llama_3_1", [](ModelConfig&, RopeScaling& s) { s.low_freq_factor = 1.1; });
  expect_seen("llama_3_1", [](ModelConfig&, RopeScaling& s) { s.high_freq_factor = 4.1; });
  expect_seen("llama_3_1", [](ModelConfig&, RopeScaling& s) { s.original_max_position_embeddings = 8000; });
  expect_seen("qwen2_5_yarn", [](ModelConfig&, RopeScaling& s) { s.beta_fast = 16; });
  expect_seen("qwen2_5_yarn", [](ModelConfig&, RopeScaling& s) { s.beta_slow = 4; });
  expect_seen("qwen2_5_yarn", [](ModelConfig&, RopeScaling& s) { s.attention_factor = 1; });
  expect_seen("yarn_not_truncated", [](ModelConfig&, RopeScaling& s) { s.truncate = true; });
  expect_seen("yarn_mscale", [](ModelConfig&, RopeScaling& s) { s.mscale = 1.1; });
  expect_seen("yarn_mscale", [](ModelConfig&, RopeScaling& s) { s.mscale_all_dim = 0; });
  expect_seen("phi_3_short", [](ModelConfig& c, RopeScaling&) { c.max_seq_len = 65536; });
  expect_seen("phi_3_long", [](ModelConfig&, RopeScaling& s) { std::swap(s.short_factor, s.long_factor); });
  expect_seen("dynamic_beyond", [](ModelConfig& c, RopeScaling&) { c.max_seq_len = 1100; });
  expect_seen("linear_partial", [](ModelConfig& c, RopeScaling&) { c.rope_theta = 9900; });
}

}  // namespace
}  // namespace llmtrain::test
