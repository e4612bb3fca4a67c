#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

/// Text that a tokenizer cannot encode; the byte is an offset in that text.
class EncodeError : public UserError {
 public:
  EncodeError(size_t byte, const std::string& reason)
      : UserError(ExitCode::bad_content, "byte " + std::to_string(byte) + ": " + reason),
        byte_(byte),
        reason_(reason) {}
  size_t byte() const { return byte_; }
  const std::string& reason() const { return reason_; }

 private:
  size_t byte_;
  std::string reason_;
};

/// Text to token ids and back. Immutable after construction, so that threads share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;  ///< "char", "bytes", ...
  virtual int64_t vocabulary_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t bos_id() const = 0;  ///< -1 when there is none
  /// Appends the ids of `text` as one text, without special tokens. EncodeError for text the vocabulary does not cover
  /// or that is not UTF-8 (where that matters).
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Bytes of the ids; special tokens give nothing.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Everything needed to make it again (make_tokenizer_from), stored in token files; equal text = equal tokenizer.
  virtual std::string serialized() const = 0;
};

/// A char vocabulary with more code points than this is refused (ids, EOS and BOS fit 16 bits): use bytes.
inline constexpr size_t max_char_vocabulary = 65534;

/// Ids 0..255 are the bytes, 256 is EOS and, when there is one, 257 is BOS.
std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_bos = false);
/// One id per Unicode code point, in code point order from 0; then EOS and, when there is one, BOS. `code_points` are
/// distinct and sorted.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> code_points, bool with_bos = false);
/// From serialized() text, which may come from a foreign file: UserError(bad_content) when it is none.
std::unique_ptr<Tokenizer> make_tokenizer_from(std::string_view serialized);

}  // namespace llmtrain
