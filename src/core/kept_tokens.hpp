#pragma once
// Sets of tokens that sampling could draw (Batch::kept), stored compactly: most of their words are 0.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

/// Appends a row's words: their number n and n pairs of a word's index and the word, or all_words and all of them.
inline constexpr uint32_t all_words = ~0U;
inline void append_kept(std::vector<uint32_t>& out, std::span<const uint32_t> row) {
  const auto count = static_cast<size_t>(std::ranges::count_if(row, [](uint32_t word) { return word != 0; }));
  if (2 * count >= row.size()) {
    out.push_back(all_words);
    out.insert(out.end(), row.begin(), row.end());
    return;
  }
  out.push_back(static_cast<uint32_t>(count));
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != 0) out.insert(out.end(), {static_cast<uint32_t>(i), row[i]});
  }
}

/// Maximum number of stored values for a row of `words` words and at most `tokens` tokens.
constexpr int64_t max_kept_values(int64_t words, int64_t tokens) { return 1 + std::min(words, 2 * tokens); }

/// Takes the first row from `stored`, and writes its words. Throws Error if it does not have that many words.
inline void take_kept(std::span<const uint32_t>& stored, std::span<uint32_t> row) {
  LLMTRAIN_CHECK(!stored.empty(), "a row of kept tokens is missing");
  const uint32_t count = stored.front();
  const size_t values = count == all_words ? row.size() : 2 * size_t{count};
  LLMTRAIN_CHECK(values < stored.size() && values <= row.size(), "a row of kept tokens is damaged");
  const std::span<const uint32_t> words = stored.subspan(1, values);
  stored = stored.subspan(1 + values);
  if (count == all_words) {
    std::ranges::copy(words, row.begin());
    return;
  }
  std::ranges::fill(row, 0U);
  for (size_t i = 0; i < words.size(); i += 2) {
    LLMTRAIN_CHECK(words[i] < row.size(), "a row of kept tokens is damaged");
    row[words[i]] = words[i + 1];
  }
}

}  // namespace llmtrain
