#pragma once
// What is done to the tokens of a text in the end: special tokens around it, offsets without white space.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/aligned_text.hpp"

namespace llmtrain {

/// A text of several post-processors one after the other: their special tokens stand around each other.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool trim_offsets = false;
  bool add_prefix_space = false;  ///< a single leading space was added, not the user's: kept by the trimming
};

/// Leaves white space at the ends of tokens out of their ranges in `text`, as ByteLevel does: as many characters as the
/// token has, whatever they are. `tokens` as the vocabulary has them.
void trim_ranges(const PostProcessor& options, std::string_view text, const std::vector<std::string>& tokens,
                 std::vector<TextRange>& ranges);

}  // namespace llmtrain
