#include "text/sentencepiece/sentencepiece_segment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llmtrain {
namespace {

using testing::ElementsAre;
using Type = SentencePieceModel::Type;

std::vector<int32_t> ids_of(const SentencePieceModel& model, std::string_view text) {
  std::vector<PieceRange> pieces;
  make_piece_lattice(model, PieceTable(model))->segment(text, pieces);
  std::vector<int32_t> ids;
  ids.reserve(pieces.size());
  for (const PieceRange& piece : pieces) ids.push_back(piece.id);
  return ids;
}

// Runs of spaces whose segmentations are equally good except for rounding. The ids are those of sentencepiece 0.2.3;
// sums compared in double precision segment four spaces differently.
TEST(PieceLattice, SumsAreComparedInSinglePrecision) {
  const std::string space = "\u2581";
  SentencePieceModel model;
  model.pieces = {{"<unk>", 0, Type::unknown},
                  {"<s>", 0, Type::control},
                  {"</s>", 0, Type::control},
                  {"n", -1.5F, Type::normal},
                  {"p", -1.7F, Type::normal},
                  {space, -3.291F, Type::normal},
                  {space + space, -6.581999778747559F, Type::normal},
                  {space + space + space, -9.87299919128418F, Type::normal}};
  EXPECT_THAT(ids_of(model, "n" + space + space + space + space + "p"), ElementsAre(3, 5, 7, 4));
  model.pieces[7].score = -9.9F;  // the control: clearly worse
  EXPECT_THAT(ids_of(model, "n" + space + space + space + space + "p"), testing::Not(ElementsAre(3, 5, 7, 4)));
}

}  // namespace
}  // namespace llmtrain
