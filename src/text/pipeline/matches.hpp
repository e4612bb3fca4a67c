#pragma once
// Matches of a pattern in a text: functions for_matches(text, use) that call use(begin, end) for each, from left to
// right.

#include <memory>
#include <string>
#include <string_view>

#include "text/pipeline/normalizer.hpp"
#include "text/split/regex.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {

/// Every occurrence of a text; an empty one occurs nowhere.
inline auto literal_matches(const std::string& literal) {
  return [literal](std::string_view text, const auto& use) {
    size_t at = literal.empty() ? std::string_view::npos : text.find(literal);
    for (; at != std::string_view::npos; at = text.find(literal, at + literal.size())) use(at, at + literal.size());
  };
}

inline auto native_matches(RegexMatch match) {
  return [match](std::string_view text, const auto& use) {
    for (size_t i = 0; i < text.size();) {
      const size_t end = match(text, i);
      if (end > i) use(i, end);
      i = end > i ? end : i + character_at(text, i).length;
    }
  };
}

inline auto regex_matches(std::unique_ptr<Regex> regex) {
  return [regex = std::shared_ptr<const Regex>(std::move(regex))](std::string_view text, const auto& use) {
    if (!text.empty()) regex->for_matches(text, use);
  };
}

}  // namespace llmtrain
