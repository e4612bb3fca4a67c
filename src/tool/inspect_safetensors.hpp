#pragma once
#include <string>

namespace llmtrain {

/// Prints what the header of a file of safetensors says. UserError(bad_content).
void inspect_safetensors(const std::string& path);

}  // namespace llmtrain
