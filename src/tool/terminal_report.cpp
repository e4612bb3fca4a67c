#include "tool/terminal_report.hpp"

#include <iostream>

#include "core/error.hpp"

namespace llmtrain {

ProgressReport terminal_report() {
  return [](const std::string& line) {
    if (!line.ends_with(" %")) std::cerr << without_controls(line) << '\n';
  };
}

}  // namespace llmtrain
