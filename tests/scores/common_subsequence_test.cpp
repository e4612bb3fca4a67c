// Longest common subsequences by bits are those of the table that rouge-score fills and reads, also beyond one word of
// bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "scores/ngrams.hpp"

namespace llmtrain {
namespace {

using Table = std::vector<std::vector<int64_t>>;

Table make_table(const NgramIds& a, const NgramIds& b) {
  Table t(a.size() + 1, std::vector<int64_t>(b.size() + 1));
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      t[i][j] = a[i - 1] == b[j - 1] ? t[i - 1][j - 1] + 1 : std::max(t[i - 1][j], t[i][j - 1]);
    }
  }
  return t;
}

/// Reads the table from its end; `strict` false prefers the other of two equal ways.
std::vector<size_t> read_table(const Table& t, const NgramIds& a, const NgramIds& b, bool strict = true) {
  std::vector<size_t> positions;
  for (size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      positions.insert(positions.begin(), --i);
      --j;
    } else if (t[i][j - 1] > t[i - 1][j] || (!strict && t[i][j - 1] == t[i - 1][j])) {
      --j;
    } else {
      --i;
    }
  }
  return positions;
}

TEST(CommonSubsequence, EqualsTheTable) {
  std::mt19937 random(3);
  int other_choice = 0;
  for (int round = 0; round < 600; ++round) {
    const auto draw = [&](size_t most, uint32_t kinds) {
      NgramIds ids(random() % (most + 1));
      for (uint32_t& id : ids) id = random() % kinds;
      return ids;
    };
    const auto kinds = static_cast<uint32_t>(1 + random() % 12);
    const size_t most = round % 3 == 0 ? 260 : 12;
    const NgramIds a = draw(most, kinds), b = draw(most, kinds);
    const Table table = make_table(a, b);
    EXPECT_EQ(common_subsequence_length(a, b), table[a.size()][b.size()]);
    const std::vector<size_t> expected = read_table(table, a, b);
    EXPECT_EQ(common_subsequence(a, b), expected);
    other_choice += read_table(table, a, b, false) == expected ? 0 : 1;
  }
  EXPECT_GT(other_choice, 100);  // a control: the texts have several longest common subsequences
}

TEST(CommonSubsequence, WholeWordsOfBits) {
  for (const size_t length : {64, 65, 128}) {
    const NgramIds same(length, 7);
    EXPECT_EQ(common_subsequence_length(same, same), static_cast<int64_t>(length));
    EXPECT_EQ(common_subsequence(same, same).size(), length);
    EXPECT_EQ(common_subsequence_length(same, NgramIds(length, 8)), 0);
  }
}

}  // namespace
}  // namespace llmtrain
