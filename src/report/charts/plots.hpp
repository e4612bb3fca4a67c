#pragma once
// Plots of runs as picture files; gnuplot draws PNG.

#include <filesystem>
#include <string>
#include <vector>

namespace llmtrain {

/// Writes the report's plots to the folder, one file NAME.`format` each, and returns the files. `format`: "png" or
/// "svg". Throws UserError: no_device (69) for a PNG if gnuplot is not installed, missing_input, cannot_create, io.
std::vector<std::filesystem::path> write_plots(const std::vector<std::filesystem::path>& runs,
                                               const std::filesystem::path& folder, const std::string& format);

}  // namespace llmtrain
