#pragma once
// SentencePiece's model file: pieces with scores, and the normalization of text.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/added_tokens.hpp"
#include "text/sentencepiece/charsmap.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

inline constexpr int64_t max_sentencepiece_file = int64_t{64} << 20;  ///< bytes

struct SentencePieceModel {
  enum class Type : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum class Kind : uint8_t { unigram = 1, bpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  ///< by id
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";
  std::string bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
  std::shared_ptr<const Charsmap> charsmap;  ///< null: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  std::vector<AddedToken> added = {};  ///< from the files next to the model; cut out before a text is normalized
  /// True if the dummy prefix precedes every text between them, not only the first.
  bool prefixes_every_segment = true;

  bool has(Type type, int32_t id) const { return pieces[static_cast<size_t>(id)].type == type; }
};

/// Reads a model and checks everything that the tokenizer relies on. Throws UserError(bad_content) "name: ...".
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& name);

/// Normalized text, and the origin of every byte of it (and of its end).
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);
  ~SentencePieceNormalizer();
  /// `origins` may be null. With `continues` the text follows a segment that ended in a word.
  void normalize(std::string_view text, bool continues, std::string& normal, std::vector<size_t>* origins) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenizerOrigin;
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model, TokenizerOrigin origin);

}  // namespace llmtrain
