#include "scores/ngrams.hpp"

#include <algorithm>

#include "text/chat/jinja/python_text.hpp"

namespace llmtrain {

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t i = jinja::skip_python_spaces(text, 0); i < text.size(); i = jinja::skip_python_spaces(text, i)) {
    size_t end = i;
    for (size_t next = i; next < text.size() && !jinja::is_python_space(next_code_point(text, next));) end = next;
    words.push_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

NgramIds NgramTable::tokens(std::span<const std::string_view> words) {
  NgramIds ids;
  ids.reserve(words.size());
  for (const std::string_view word : words) {
    const auto [entry, is_new] = words_.try_emplace(std::string(word), next_);
    next_ += is_new ? 1 : 0;
    ids.push_back(entry->second);
  }
  return ids;
}

NgramIds NgramTable::characters(std::string_view text) {
  NgramIds ids;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (!jinja::is_python_space(c)) ids.push_back(c);
  }
  return ids;
}

std::vector<NgramIds> NgramTable::ngrams(const NgramIds& tokens, size_t orders) {
  std::vector<NgramIds> all;
  NgramIds ids = tokens;  // of the n-grams that begin at each token
  for (size_t order = 1; order <= orders; ++order) {
    if (order > 1 && !ids.empty()) ids.pop_back();
    for (size_t i = 0; order > 1 && i < ids.size(); ++i) {
      const auto [entry, is_new] = longer_.try_emplace(uint64_t{ids[i]} << 32 | tokens[i + order - 1], next_);
      next_ += is_new ? 1 : 0;
      ids[i] = entry->second;
    }
    all.push_back(ids);
    std::ranges::sort(all.back());
  }
  return all;
}

int64_t count_common(const NgramIds& a, const NgramIds& b) {
  int64_t common = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    common += a[i] == b[k] ? 1 : 0;
    const bool advance_a = a[i] <= b[k], advance_b = b[k] <= a[i];
    i += advance_a ? 1 : 0;
    k += advance_b ? 1 : 0;
  }
  return common;
}

}  // namespace llmtrain
