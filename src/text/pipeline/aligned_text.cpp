#include "text/pipeline/aligned_text.hpp"

namespace llmtrain {

void AlignedText::assign_input(std::string_view text) {
  text_ = text;
  tracked_ = true;
  starts_input_ = true;
  origin_begin_ = 0;
  origins_.clear();
  origins_.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_at(text, i).length;
    origins_.insert(origins_.end(), length, {i, i + length});
    i += length;
  }
}

}  // namespace llmtrain
