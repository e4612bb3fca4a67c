#pragma once
// Segments normalized text into the pieces of a SentencePiece model.

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/pipeline/literal_matcher.hpp"
#include "text/pipeline/vocabulary.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"

namespace llmtrain {

/// Pieces by their text. Unknown, control and byte pieces are names, not text, but a text with such a name gets its id.
class PieceTable {
 public:
  explicit PieceTable(const SentencePieceModel& model);
  /// Returns the id of a normal, user-defined or unused piece, -1 for others.
  int32_t find(std::string_view text) const { return text_.find(text); }
  /// Returns the id of a piece, names first; the unknown piece's id for everything else.
  int32_t id_of(std::string_view text) const {
    const int32_t name = names_.find(text);
    if (name >= 0) return name;
    const int32_t id = find(text);
    return id >= 0 ? id : unknown_;
  }
  int32_t unknown() const { return unknown_; }
  int32_t byte(uint8_t value) const { return bytes_[value]; }
  size_t longest() const { return text_.longest(); }  ///< bytes
  /// Returns true if a piece contains U+2581 after another character.
  bool any_joins_words() const { return any_joins_words_; }

 private:
  Vocabulary text_, names_;
  int32_t unknown_ = -1;
  std::array<int32_t, 256> bytes_{};
  bool any_joins_words_ = false;
};

struct PieceRange {
  size_t begin, end;
  int32_t id;
};

class PieceSegmenter {
 public:
  virtual ~PieceSegmenter() = default;
  /// Appends the pieces of a non-empty text.
  virtual void segment(std::string_view text, std::vector<PieceRange>& pieces) const = 0;
  /// Returns true if segments of a text give the same pieces as the whole when no piece crosses their borders.
  virtual bool works_on_words() const = 0;
};

/// BPE: merges adjacent pieces whose union is a piece, the best score first.
std::unique_ptr<PieceSegmenter> make_piece_merger(const SentencePieceModel& model, const PieceTable& table);
/// Unigram: the segmentation with the best sum of scores.
std::unique_ptr<PieceSegmenter> make_piece_lattice(const SentencePieceModel& model, const PieceTable& table);

}  // namespace llmtrain
