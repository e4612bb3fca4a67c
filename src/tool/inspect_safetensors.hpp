#pragma once
#include <string>

namespace llmtrain {

/// Prints the header of a safetensors file. Throws UserError(bad_content).
void inspect_safetensors(const std::string& path);

}  // namespace llmtrain
