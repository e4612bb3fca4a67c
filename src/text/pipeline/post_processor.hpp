#pragma once
// Last step on the tokens of a text: adds special tokens around it and trims white space from offsets.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/aligned_text.hpp"

namespace llmtrain {

/// Combines several post-processors of a text: their special tokens nest.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool trim_offsets = false;
  bool add_prefix_space = false;  ///< True if a single leading space was added and is not the user's: trimming keeps it
};

/// Excludes white space at the ends of tokens from their ranges in `text`, like ByteLevel: as many characters as the
/// token has, whatever they are. `tokens` are spelled as in the vocabulary.
void trim_ranges(const PostProcessor& options, std::string_view text, const std::vector<std::string>& tokens,
                 std::vector<TextRange>& ranges);

}  // namespace llmtrain
