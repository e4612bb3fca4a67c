#include "data/quality/duplicates.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <string>

namespace llmtrain {
namespace {

constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Sorts documents by a key, equal ones in their own order.
template <class Key>
std::vector<int64_t> sorted_by(const std::vector<int64_t>& documents, const Key& key) {
  std::vector<int64_t> order = documents;
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    const auto left = key(a), right = key(b);
    return left != right ? left < right : a < b;
  });
  return order;
}

}  // namespace

void SimHash::add(std::string_view text) {
  std::array<uint64_t, 3> words{};
  int64_t count = 0;
  std::string word;
  for (size_t i = 0; i < text.size();) {
    while (i < text.size() && is_space(text[i])) ++i;
    word.clear();
    for (; i < text.size() && !is_space(text[i]); ++i) {
      word += text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
    }
    if (word.empty()) break;
    words = {words[1], words[2], XXH3_64bits(word.data(), word.size())};
    if (++count < 3) continue;
    const uint64_t run = XXH3_64bits(words.data(), sizeof(words));
    for (size_t bit = 0; bit < 64; ++bit) sums_[bit] += (run >> bit & 1) != 0 ? 1 : -1;
    ++runs_;
  }
}

uint64_t SimHash::bits() const {
  uint64_t bits = 0;
  for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{sums_[bit] > 0 ? 1U : 0U} << bit;
  return bits;
}

DuplicateCounts find_duplicates(const std::vector<DocumentPrint>& prints, size_t max_pairs) {
  DuplicateCounts counts;
  const auto print = [&](int64_t document) -> const DocumentPrint& { return prints[static_cast<size_t>(document)]; };
  std::vector<int64_t> all(prints.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const std::vector<int64_t> by_content = sorted_by(all, [&](int64_t d) { return print(d).content; });
  std::vector<int64_t> distinct;  // documents with words, each content once
  int64_t earliest = 0;           // first document of the content
  for (size_t i = 0; i < by_content.size(); ++i) {
    const int64_t document = by_content[i];
    if (i > 0 && print(by_content[i - 1]).content == print(document).content) {
      ++counts.exact;
      counts.exact_pairs.push_back({earliest, document});
      if (counts.exact_pairs.size() > 2 * max_pairs + 1000) {
        std::ranges::sort(counts.exact_pairs);
        counts.exact_pairs.resize(max_pairs);
      }
      continue;
    }
    earliest = document;
    if (print(document).has_words) distinct.push_back(document);
  }
  std::ranges::sort(counts.exact_pairs);
  if (counts.exact_pairs.size() > max_pairs) counts.exact_pairs.resize(max_pairs);

  std::vector<int64_t> earlier(prints.size(), -1);  // first document that is similar to the document
  for (int block = 0; block < 4; ++block) {
    const auto key = [&](int64_t d) { return std::rotl(print(d).similar, 16 * block); };
    const std::vector<int64_t> order = sorted_by(distinct, key);
    for (size_t i = 1; i < order.size(); ++i) {
      const uint64_t mine = key(order[i]);
      const size_t last = i > static_cast<size_t>(max_compared) ? i - static_cast<size_t>(max_compared) : 0;
      for (size_t j = i; j-- > last;) {
        const uint64_t other = key(order[j]);
        if ((mine ^ other) >> 48 != 0) break;
        if (std::popcount(mine ^ other) > near_bits) continue;
        const auto [first, second] = std::minmax(order[i], order[j]);
        int64_t& known = earlier[static_cast<size_t>(second)];
        if (known < 0 || first < known) known = first;
      }
    }
  }
  for (size_t d = 0; d < earlier.size(); ++d) {
    if (earlier[d] < 0) continue;
    ++counts.near;
    if (counts.near_pairs.size() < max_pairs) counts.near_pairs.push_back({earlier[d], static_cast<int64_t>(d)});
  }
  return counts;
}

}  // namespace llmtrain
