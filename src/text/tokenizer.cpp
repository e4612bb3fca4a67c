#include "text/tokenizer.hpp"

#include "text/unicode/code_points.hpp"

namespace llmtrain {

void Tokenizer::encode_content(std::string_view text, std::span<const TextRange>, std::vector<int32_t>& ids,
                               std::vector<TextRange>& ranges) const {
  encode_with_ranges(text, ids, ranges);  // no text gives a special token
}

void Tokenizer::add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const {
  if (bos_id() < 0) return;
  ids.insert(ids.begin(), bos_id());
  if (ranges != nullptr) ranges->insert(ranges->begin(), TextRange{});
}

size_t Tokenizer::find_cut(std::string_view window) const {
  for (size_t i = 1; i < window.size(); ++i) {
    if (!is_utf8_continuation(window[i]) || i > 3) return i;
  }
  return std::string_view::npos;
}

void Tokenizer::encode_segment(std::string_view text, bool, std::vector<int32_t>& ids) const { encode(text, ids); }

}  // namespace llmtrain
