#include "data/formats/encode_documents.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {
namespace {

/// The first token is never a target.
bool has_target(const EncodedRow& row) {
  LLMTRAIN_CHECK(row.mask.size() == row.ids.size(), "a mask has one entry per token");
  return !row.mask.empty() && std::find(row.mask.begin() + 1, row.mask.end(), uint8_t{1}) != row.mask.end();
}

}  // namespace

LeftOut left_out_of_training(const RowDocuments& row, const std::vector<EncodedRow>& encoded, bool preferences) {
  if (row.is_prompt()) return LeftOut::no;
  if (preferences && std::ranges::any_of(row.documents, has_empty_completion)) return LeftOut::empty;
  if (encoded.size() == 2 && encoded[0].ids == encoded[1].ids) return LeftOut::equal;
  return std::ranges::all_of(encoded, has_target) ? LeftOut::no : LeftOut::untrained;
}

void encode_documents(const ChatEncoder& encoder, const RowDocuments& row, std::vector<EncodedRow>& encoded) {
  encoded.resize(row.documents.size());
  if (row.is_prompt()) return encoder.encode_prompt(row.documents.front(), encoded.front());
  size_t prompt = SIZE_MAX;  // tokens
  bool divided = true;
  for (size_t d = 0; d < encoded.size(); ++d) {
    encoder.encode(row.documents[d], encoded[d]);
    const auto first = std::ranges::find(encoded[d].mask, uint8_t{1});
    prompt = std::min(prompt, static_cast<size_t>(first - encoded[d].mask.begin()));
    divided = divided && encoded[d].text.border > 0;
  }
  if (!divided) return;
  for (EncodedRow& document : encoded) {
    const std::vector<TextRange>& trained = document.text.trained;
    if (trained.empty() || trained.front().begin != document.text.border) continue;  // its first turn is not trained
    const auto first = std::ranges::find(document.mask, uint8_t{1});
    std::fill(document.mask.begin() + static_cast<std::ptrdiff_t>(std::min(prompt, document.mask.size())), first,
              uint8_t{1});
    document.trained = std::ranges::count(document.mask, uint8_t{1});
  }
}

}  // namespace llmtrain
