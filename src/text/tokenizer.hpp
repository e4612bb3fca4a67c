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

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

/// A file that a tokenizer was read from.
struct TokenizerFile {
  std::string name;  ///< without folder
  std::string bytes;
};

/// Text to token ids and back. Immutable after construction, so that threads share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;         ///< "char", "bytes", "bpe" ...
  virtual int64_t vocabulary_size() const = 0;  ///< highest id + 1
  virtual int32_t eos_id() const = 0;           ///< -1 when there is none: training on text needs one
  virtual int32_t bos_id() const = 0;           ///< -1 when there is none
  virtual int32_t pad_id() const { return -1; }
  /// Appends the ids of `text` as one text, without special tokens around it. EncodeError for text the vocabulary does
  /// not cover or that is not UTF-8 (where that matters).
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// The same, and the bytes of `text` that each token stands for.
  virtual void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                                  std::vector<TextRange>& ranges) const = 0;
  /// Puts the tokens around a text that it has for a model (BOS, [CLS], ...); their ranges are empty. `ranges` may be
  /// null.
  virtual void add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const;
  /// Bytes of the ids; special tokens give nothing.
  /// Ids without a token give nothing: a model may have more rows than its tokenizer has tokens.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// When tokens follow, only the last so many bytes of decode() may change; when the first tokens are left out, the
  /// same bytes come, but for the first so many. npos: no such number is known.
  virtual size_t decode_reach() const { return 0; }
  /// Special tokens give their names.
  virtual std::string decode_with_special(std::span<const int32_t> ids) const { return decode(ids); }
  /// A token as the vocabulary has it, for people; empty when the id has none.
  virtual std::string token(int32_t id) const { return decode(std::span(&id, 1)); }
  /// Everything needed to make it again (make_tokenizer_from), stored in token files; equal text = equal tokenizer.
  virtual std::string serialized() const = 0;
  /// What it was read from; none for char and bytes.
  virtual std::vector<TokenizerFile> files() const { return {}; }
  /// The tokenizer class of Transformers that its files are read as; empty for char and bytes.
  virtual std::string tokenizer_class() const { return {}; }
  /// Names the places where its files say something that it does not follow.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// Long texts are encoded in parts. A cut is where find_cut says so, and gives the ids of the whole.
  virtual bool works_on_parts() const { return true; }
  /// A place inside `window`, bytes within a text, before which the text may be cut; npos when there is none. A
  /// function of a few bytes around the place: it does not matter where the window begins.
  virtual size_t find_cut(std::string_view window) const;
  /// `begins`: the part is the first one of its text.
  virtual void encode_part(std::string_view text, bool begins, std::vector<int32_t>& ids) const;
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
