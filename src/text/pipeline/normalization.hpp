#pragma once
// Unicode normalization forms as in the tokenizers library, from its tables. The tables are part of the sources, since
// a text must give the same tokens whatever Unicode version a library of the machine has.

#include <cstdint>
#include <string_view>

#include "text/pipeline/aligned_text.hpp"
#include "text/pipeline/normalizer.hpp"

namespace llmtrain {

/// Returns true if a quick check shows that the text is in the form.
bool is_in_form(std::string_view text, NormalizationForm form);
void write_form(const TextView& from, NormalizationForm form, AlignedText& to);

}  // namespace llmtrain
