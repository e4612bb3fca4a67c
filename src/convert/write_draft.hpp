#pragma once
#include <string>

#include "convert/conversion.hpp"
#include "convert/draft.hpp"

namespace llmtrain::convert {

/// The deck's text: its keys in the order of the manual, each with its origin; keys that are needed, as comments; and
/// what was left out.
std::string write_draft(const Draft& draft, const std::string& title, const Conversion& conversion);

}  // namespace llmtrain::convert
