// Longest common subsequences by bits (Crochemore et al. 2001). With t(i, j) as their length for the first i tokens of
// the reference and the first j of the candidate, bit j of row i is 0 where t(i, j + 1) is t(i, j) + 1.

#include <bit>
#include <unordered_map>

#include "core/error.hpp"
#include "scores/ngrams.hpp"

namespace llmtrain {

namespace {

using Row = std::vector<uint64_t>;

constexpr size_t word_bits = 64;

/// Computes one row from that before, in a time proportional to its words: a token has a mask of the positions at which
/// the candidate has it, stored if there are more of them than words (so there are at most 64), else made when needed.
class RowUpdate {
 public:
  explicit RowUpdate(const NgramIds& candidate) : scratch_((candidate.size() + word_bits - 1) / word_bits) {
    for (size_t j = 0; j < candidate.size(); ++j) tokens_[candidate[j]].positions.push_back(j);
    for (auto& [id, token] : tokens_) {
      if (token.positions.size() <= scratch_.size()) continue;
      token.mask.resize(scratch_.size());
      for (const size_t j : token.positions) token.mask[j / word_bits] |= uint64_t{1} << j % word_bits;
    }
  }

  Row first_row() const { return Row(scratch_.size(), ~uint64_t{0}); }

  void advance(Row& row, uint32_t id) {
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) return;
    const Token& token = found->second;
    if (!token.mask.empty()) return add_matches(row, token.mask);
    for (const size_t j : token.positions) scratch_[j / word_bits] |= uint64_t{1} << j % word_bits;
    add_matches(row, scratch_);
    for (const size_t j : token.positions) scratch_[j / word_bits] = 0;
  }

 private:
  struct Token {
    std::vector<size_t> positions;
    Row mask;
  };

  static void add_matches(Row& row, const Row& mask) {
    uint64_t carry = 0;
    for (size_t w = 0; w < row.size(); ++w) {
      const uint64_t v = row[w], partial = v + (v & mask[w]), sum = partial + carry;
      carry = partial < v || sum < partial ? 1 : 0;
      row[w] = sum | (v & ~mask[w]);
    }
  }

  Row scratch_;
  std::unordered_map<uint32_t, Token> tokens_;
};

bool grows(const Row& row, size_t j) { return (row[j / word_bits] >> j % word_bits & 1) == 0; }

/// Returns t(i, j) from row i.
int64_t length_at(const Row& row, size_t j) {
  int64_t zeros = 0;
  for (size_t w = 0; w < j / word_bits; ++w) zeros += std::popcount(~row[w]);
  if (j % word_bits > 0) zeros += std::popcount(~row[j / word_bits] << (word_bits - j % word_bits));
  return zeros;
}

}  // namespace

int64_t common_subsequence_length(const NgramIds& reference, const NgramIds& candidate) {
  RowUpdate update(candidate);
  Row row = update.first_row();
  for (const uint32_t token : reference) update.advance(row, token);
  return length_at(row, candidate.size());
}

std::vector<size_t> common_subsequence(const NgramIds& reference, const NgramIds& candidate) {
  constexpr size_t max_words = size_t{1} << 27;
  RowUpdate update(candidate);
  Row row = update.first_row();
  if ((reference.size() + 1) * row.size() > max_words) {
    throw UserError(ExitCode::bad_content, "a sentence is too long for rougeLsum; separate sentences by line ends");
  }
  std::vector<Row> rows = {row};
  rows.reserve(reference.size() + 1);
  for (const uint32_t token : reference) {
    update.advance(row, token);
    rows.push_back(row);
  }
  std::vector<size_t> positions;
  size_t i = reference.size(), j = candidate.size();
  int64_t here = length_at(row, j);                                // t(i, j)
  int64_t above = i > 0 ? length_at(rows[i - 1], j) : int64_t{0};  // t(i - 1, j)
  while (i > 0 && j > 0) {
    const bool equal = reference[i - 1] == candidate[j - 1];
    const int64_t left = here - (grows(rows[i], j - 1) ? 1 : 0);
    if (equal) positions.push_back(i - 1);
    if (!equal && left > above) {
      above -= grows(rows[i - 1], j - 1) ? 1 : 0;
      here = left;
      --j;
      continue;
    }
    --i;
    if (equal) --j;
    here = length_at(rows[i], j);
    above = i > 0 ? length_at(rows[i - 1], j) : int64_t{0};
  }
  return {positions.rbegin(), positions.rend()};
}

}  // namespace llmtrain
