#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// The tokens of one text that comes in parts, the same whatever the parts are. Memory is that of the longest stretch
/// in which the tokenizer has no place to cut (Tokenizer::find_cut), and at least `part_bytes`; that of the whole text
/// where it takes texts only as wholes.
class EncodeStream {
 public:
  explicit EncodeStream(const Tokenizer& tokenizer, size_t part_bytes = size_t{1} << 20);

  /// Appends the ids that are certain. EncodeError as Tokenizer::encode, its byte an offset in the whole text.
  void add(std::string_view part, std::vector<int32_t>& ids);
  /// The text is at its end.
  void finish(std::vector<int32_t>& ids);

 private:
  void encode_until(size_t end, std::vector<int32_t>& ids);
  size_t find_last_cut() const;

  const Tokenizer& tokenizer_;
  size_t part_bytes_;
  std::string held_;
  size_t offset_ = 0;    // of held_ in the text
  size_t searched_ = 0;  // no cut lies before it
};

}  // namespace llmtrain
