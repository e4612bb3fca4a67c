#pragma once
// Report of one or several runs: one HTML file without references to the network.

#include <filesystem>
#include <vector>

namespace llmtrain {

/// Writes the report to the file `output`, whole or not at all. Its folder is made. Throws UserError: missing_input if
/// none of the runs has metrics, cannot_create or io for the file.
void write_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& output);

}  // namespace llmtrain
