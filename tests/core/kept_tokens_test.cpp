// Sets of kept tokens come back as they were stored, whether few or most tokens are kept.
#include "core/kept_tokens.hpp"

#include <gtest/gtest.h>

namespace llmtrain {
namespace {

TEST(KeptTokens, RowsComeBack) {
  const std::vector<std::vector<uint32_t>> rows = {
      {0, 0, 0, 0, 8, 0, 0}, {1, 2, 3, 0, 0, 0, 0}, {1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 0, 0, 1}};
  std::vector<uint32_t> stored;
  for (const auto& row : rows) append_kept(stored, row);
  EXPECT_EQ(stored.size(), 3U + 7U + 8U + 3U);
  EXPECT_EQ(max_kept_values(7, 1), 3);
  EXPECT_EQ(max_kept_values(7, 100), 8);
  std::span<const uint32_t> rest(stored);
  for (const auto& row : rows) {
    std::vector<uint32_t> taken(7, 9);
    take_kept(rest, taken);
    EXPECT_EQ(taken, row);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(KeptTokens, DamagedRowsAreRefused) {
  std::vector<uint32_t> row(7);
  for (const std::vector<uint32_t>& stored :
       std::vector<std::vector<uint32_t>>{{}, {1, 7, 1}, {2, 1, 1, 3}, {all_words, 1, 2}, {5, 1, 1}}) {
    std::span<const uint32_t> rest(stored);
    EXPECT_THROW(take_kept(rest, row), Error);
  }
  const std::vector<uint32_t> sound = {1, 6, 1};
  std::span<const uint32_t> rest(sound);
  EXPECT_NO_THROW(take_kept(rest, row)) << "the control";
}

}  // namespace
}  // namespace llmtrain
