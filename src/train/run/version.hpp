#pragma once
#include <string>

namespace llmtrain {

/// Text of --version: this program, the device it was built for, and its libraries.
std::string version_text();

}  // namespace llmtrain
