#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// "name = value", with a value as printed, in lines of a deck: lists break after commas, long text after a backslash.
std::string deck_line(std::string_view name, std::string_view value);

}  // namespace llmtrain
