#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Encodes one text that arrives in blocks; the ids do not depend on the blocks. Memory is that of the longest stretch
/// without a cut (Tokenizer::find_cut), and at least `block_bytes`; it is that of the whole text if the tokenizer
/// cannot encode blocks separately.
class EncodeStream {
 public:
  explicit EncodeStream(const Tokenizer& tokenizer, size_t block_bytes = size_t{1} << 20);

  /// Appends the ids that are final. Throws EncodeError like Tokenizer::encode; its byte is an offset in the whole
  /// text.
  void add(std::string_view block, std::vector<int32_t>& ids);
  /// Ends the text.
  void finish(std::vector<int32_t>& ids);

 private:
  void encode_until(size_t end, std::vector<int32_t>& ids);
  size_t find_last_cut() const;

  const Tokenizer& tokenizer_;
  size_t block_bytes_;
  std::string held_;
  size_t offset_ = 0;    // offset of held_ in the text
  size_t searched_ = 0;  // no cut lies before this position
};

}  // namespace llmtrain
