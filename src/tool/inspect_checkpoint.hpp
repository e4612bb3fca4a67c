#pragma once
#include <string>

namespace llmtrain {

/// Prints the manifest of a checkpoint; checks sizes of files, but not contents (llmtool verify does). Throws
/// UserError(bad_content or missing_input).
void inspect_checkpoint(const std::string& path);

}  // namespace llmtrain
