#pragma once
#include <string>

namespace llmtrain {

/// Prints what the manifest of a checkpoint says; sizes of files are checked, contents are not (llmtool verify does).
/// UserError(bad_content or missing_input).
void inspect_checkpoint(const std::string& path);

}  // namespace llmtrain
