#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

/// Error for text that a tokenizer cannot encode; the byte is an offset in that text.
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

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

/// File that a tokenizer was read from.
struct TokenizerFile {
  std::string name;  ///< without a folder
  std::string bytes;
};

/// Converts text to token ids and back. Immutable after construction, so that threads can share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;         ///< "char", "bytes", "bpe" ...
  virtual int64_t vocabulary_size() const = 0;  ///< highest id + 1
  virtual int32_t eos_id() const = 0;           ///< -1 if there is none: training on text needs one
  virtual int32_t bos_id() const = 0;           ///< -1 if there is none
  virtual int32_t pad_id() const { return -1; }
  /// Appends the ids of `text` as one text, without special tokens around it. Throws EncodeError for text that the
  /// vocabulary does not cover or that is not UTF-8 (if that matters).
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Appends also the bytes of `text` that each token represents.
  virtual void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                                  std::vector<TextRange>& ranges) const = 0;
  /// Like encode_with_ranges, but a special token that lies in one of the ranges `content`, which are in order and
  /// apart, is text. The ids of a text without special tokens in these ranges are those of encode.
  virtual void encode_content(std::string_view text, std::span<const TextRange> content, std::vector<int32_t>& ids,
                              std::vector<TextRange>& ranges) const;
  /// Returns true if `id` is a special token, which decode omits.
  virtual bool is_special(int32_t id) const { return id == eos_id() || id == bos_id(); }
  /// Adds the tokens that a model expects around a text (BOS, [CLS], ...); their ranges are empty. `ranges` may be
  /// null.
  virtual void add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const;
  /// Returns the bytes of the ids; special tokens give nothing.
  /// Ids without a token give nothing: a model can have more rows than its tokenizer has tokens.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Number of last bytes of decode() that can change when tokens follow, and of first bytes that can change when the
  /// first tokens are omitted. npos: no such number is known.
  virtual size_t decode_reach() const { return 0; }
  /// Decodes with the names of special tokens.
  virtual std::string decode_with_special(std::span<const int32_t> ids) const { return decode(ids); }
  /// Returns a token as it is in the vocabulary, for display; empty if the id has none.
  virtual std::string token(int32_t id) const { return decode(std::span(&id, 1)); }
  /// Returns a complete description (make_tokenizer_from), which token files store; equal text = equal tokenizer.
  virtual std::string serialized() const = 0;
  /// Returns the files that it was read from; none for char and bytes.
  virtual std::vector<TokenizerFile> files() const { return {}; }
  /// The tokenizer class of Transformers that its files are read as; empty for char and bytes.
  virtual std::string tokenizer_class() const { return {}; }
  /// Names the settings in its files that it does not follow.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// Long texts are encoded in segments. find_cut returns the cuts, which give the same ids as the whole.
  virtual bool is_segmentable() const { return true; }
  /// Returns a position inside `context`, some bytes of a text, before which the text can be cut; npos if there is
  /// none. The result depends only on a few bytes around the position, not on where the context begins.
  virtual size_t find_cut(std::string_view context) const;
  /// With `begins` the segment is the first one of its text.
  virtual void encode_segment(std::string_view text, bool begins, std::vector<int32_t>& ids) const;
};

/// A char vocabulary with more code points is refused (ids, EOS and BOS fit 16 bits): use bytes.
inline constexpr size_t max_char_vocabulary = 65534;

/// Makes a tokenizer whose ids 0..255 are the bytes, 256 is EOS and, with BOS, 257 is BOS.
std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_bos = false);
/// Makes a tokenizer with one id per Unicode code point, in code point order from 0; then EOS and, with BOS, BOS.
/// `code_points` are distinct and sorted.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> code_points, bool with_bos = false);
/// Restores a tokenizer from serialized() text, which can come from an untrusted file. Throws UserError(bad_content) if
/// it is invalid.
std::unique_ptr<Tokenizer> make_tokenizer_from(std::string_view serialized);

/// How a text becomes a document.
struct TokensAround {
  bool of_tokenizer = true;  ///< what the tokenizer puts around a text, such as BOS
  bool add_bos = false;      ///< BOS, which the tokenizer must have
  bool ends = true;          ///< EOS, if there is one; without it a prompt stays open
};

/// Puts special tokens around the ids of a text of `bytes` bytes; `ranges` are the bytes of its tokens, or null where
/// `prompt` is 0. A BOS or EOS that the text itself begins or ends with is the only one there, as in TRL. An EOS of the
/// first `prompt` bytes does not end the text.
void put_tokens_around(const Tokenizer& tokenizer, const TokensAround& around, size_t bytes, size_t prompt,
                       std::vector<int32_t>& ids, std::vector<TextRange>* ranges);

}  // namespace llmtrain
