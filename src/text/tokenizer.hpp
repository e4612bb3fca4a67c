#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Text to token ids and back. Immutable after construction, so that threads share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;  ///< "char", "bytes", ...
  virtual int64_t vocabulary_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t bos_id() const = 0;  ///< -1 when there is none
  /// Appends the ids of `text` as one text, without special tokens. UserError(bad_content) with the byte offset for
  /// text the vocabulary does not cover or that is not UTF-8 (where that matters).
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Bytes of the ids; special tokens give nothing.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Everything needed to make it again (make_tokenizer_from), stored in token files; equal text = equal tokenizer.
  virtual std::string serialized() const = 0;
};

/// Ids 0..255 are the bytes, 256 is EOS.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// One id per Unicode code point, in code point order from 0; the last id is EOS. `code_points` are distinct and
/// sorted.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> code_points);
std::unique_ptr<Tokenizer> make_tokenizer_from(std::string_view serialized);

}  // namespace llmtrain
