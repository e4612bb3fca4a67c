#pragma once
// Unicode normalization forms as the tokenizers library makes them, from its tables. Own tables, because a text must
// give the same tokens whatever version of Unicode a library of the machine has.

#include <cstdint>
#include <string_view>

#include "text/pipeline/aligned_text.hpp"
#include "text/pipeline/normalizer.hpp"

namespace llmtrain {

/// True when it is known at once that the text is in the form.
bool is_in_form(std::string_view text, NormalizationForm form);
void write_form(const Chunk& from, NormalizationForm form, AlignedText& to);

}  // namespace llmtrain
