#pragma once
#include <fmt/format.h>

#include <iostream>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

/// Prints one line of llmtool inspect's description of a file.
inline void inspect_line(std::string_view name, const std::string& value) {
  std::cout << without_controls(fmt::format("{:<18} {}\n", name, value));
}

}  // namespace llmtrain
