#pragma once
// SentencePiece's model file: pieces with scores, and how text is normalized.

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

  std::vector<AddedToken> added = {};  ///< from files beside it, cut out before a text is normalized
  bool prefixes_every_part = true;     ///< the dummy prefix stands before every text between them, not the first alone

  bool has(Type type, int32_t id) const { return pieces[static_cast<size_t>(id)].type == type; }
};

/// Everything that the tokenizer relies on is checked. UserError(bad_content) "name: ...".
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& name);

/// Text as the pieces have it, and for every byte of it (and its end) where it came from.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model);
  ~SentencePieceNormalizer();
  /// `origins` may be null. `continues`: the text goes on from a part before it that ended in a word.
  void normalize(std::string_view text, bool continues, std::string& normal, std::vector<size_t>* origins) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TokenizerOrigin;
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model, TokenizerOrigin origin);

}  // namespace llmtrain
