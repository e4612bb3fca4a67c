// Split patterns that are runs of one class of characters: numbers, line ends, CJK, the steps of DeepSeek's tokenizers.
// tokenizers.

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "text/split/split_patterns.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

/// a-zA-Z: as in a bracket without escapes; sorted.
std::vector<CodeRange> ranges_of(std::string_view list) {
  std::vector<CodeRange> ranges;
  for (size_t i = 0; i < list.size();) {
    const char32_t first = next_code_point(list, i);
    char32_t last = first;
    if (i + 1 < list.size() && list[i] == '-') last = next_code_point(list, ++i);
    LLMTRAIN_CHECK(first <= last, "a range of characters runs backwards");
    ranges.push_back({first, last});
  }
  std::ranges::sort(ranges, [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  return ranges;
}

class RunSplitPattern final : public SplitPattern {
 public:
  RunSplitPattern(std::string_view name, std::string_view regex, const RunSplit& how)
      : SplitPattern(name, regex), how_(how), ranges_(ranges_of(how.list)) {}

 private:
  size_t match_end(const SplitScanner& text, size_t i) const override {
    const SplitScanner::Character first = text.at(i);
    if ((first.classes & how_.before) != 0) {
      const size_t behind = i + first.length, end = run_end(text, behind);
      if (end > behind) return end;
    }
    return run_end(text, i);
  }

  size_t run_end(const SplitScanner& text, size_t i) const {
    size_t end = i, count = 0;
    for (; count < how_.most && !text.ends(end); ++count) {
      const SplitScanner::Character c = text.at(end);
      if ((c.classes & how_.classes) == 0 && !is_listed(c)) break;
      end += c.length;
    }
    return count < how_.least ? i : end;
  }

  bool is_listed(const SplitScanner::Character& c) const {
    if (ranges_.empty() || (c.code == 0xFFFD && c.length == 1)) return false;  // not a valid character
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), c.code,
                                        [](char32_t code, const CodeRange& range) { return code < range.first; });
    return after != ranges_.begin() && c.code <= std::prev(after)->last;
  }

  RunSplit how_;
  std::vector<CodeRange> ranges_;
};

class TrailingSpaceSplit final : public SplitPattern {
 public:
  TrailingSpaceSplit(std::string_view name, std::string_view regex) : SplitPattern(name, regex) {}

 private:
  size_t match_end(const SplitScanner& text, size_t i) const override {
    const size_t end = text.run_end(i, char_class::space);
    if (end == i || text.ends(end)) return end;
    size_t line_end = end;  // last position in the run, after its first character, that a newline follows
    while (--line_end > i) {
      if (text.text()[line_end] == '\n') return line_end;
    }
    return i;
  }
  /// If no line end follows the first character, none follows a later one.
  size_t after_failure(const SplitScanner& text, size_t i) const override {
    const size_t end = text.run_end(i, char_class::space);
    return end > i ? end : SplitPattern::after_failure(text, i);
  }
};

}  // namespace

std::unique_ptr<SplitPattern> make_run_split(std::string_view name, std::string_view regex, const RunSplit& how) {
  return std::make_unique<RunSplitPattern>(name, regex, how);
}
std::unique_ptr<SplitPattern> make_trailing_space_split(std::string_view name, std::string_view regex) {
  return std::make_unique<TrailingSpaceSplit>(name, regex);
}

}  // namespace llmtrain
