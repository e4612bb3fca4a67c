#include "text/pipeline/post_processor.hpp"

#include <algorithm>

#include "text/unicode/character_sets.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

constexpr char32_t byte_level_space = 0x120;  // represents a space in GPT-2's byte form

bool is_blank(char32_t c) { return c == byte_level_space || is_white_space(c); }

}  // namespace

void trim_ranges(const PostProcessor& options, std::string_view text, const std::vector<std::string>& tokens,
                 std::vector<TextRange>& ranges) {
  if (!options.trim_offsets) return;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const std::u32string token = to_characters(tokens[i]);
    TextRange& range = ranges[i];
    size_t leading = static_cast<size_t>(std::find_if_not(token.begin(), token.end(), is_blank) - token.begin());
    const size_t trailing =
        static_cast<size_t>(std::find_if_not(token.rbegin(), token.rend(), is_blank) - token.rbegin());
    if (leading > 0) {
      const bool first = i == 0 || range.begin == 0;
      if (first && options.add_prefix_space && leading == 1) leading = 0;
      for (; leading > 0 && range.begin < range.end; --leading) {
        range.begin = std::min(range.begin + character_at(text, range.begin).length, range.end);
      }
    }
    for (size_t n = 0; n < trailing && range.end > range.begin; ++n) {
      range.end = std::max(range.end - character_before(text, range.end).length, range.begin);
    }
  }
}

}  // namespace llmtrain
