#pragma once
// Suggestions for unknown names.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Edit distance between a and b: insertions, deletions, substitutions and swaps of neighbours (optimal string
/// alignment), ignoring case.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = above[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

/// The candidate closest to `name`, or empty when none resembles it. A complete word counts as close: heads -> n_heads.
inline std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  const auto contains = [](std::string_view whole, std::string_view part) {
    return part.size() >= 3 && whole.find(part) != std::string_view::npos;
  };
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 2) + 1;
  for (std::string_view candidate : candidates) {
    size_t distance = edit_distance(name, candidate);
    if (contains(candidate, name) || contains(name, candidate)) distance = std::min<size_t>(distance, 2);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

/// " (did you mean x?)", or nothing.
inline std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view nearest = nearest_name(name, candidates);
  return nearest.empty() ? std::string() : " (did you mean " + std::string(nearest) + "?)";
}

/// "a, b, c"
template <class Names>
std::string joined(const Names& names, std::string_view separator = ", ") {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += separator;
    text += name;
  }
  return text;
}

}  // namespace llmtrain
