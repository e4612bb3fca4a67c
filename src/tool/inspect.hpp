#pragma once
// What llmtool inspect says of each kind of file. UserError(bad_content or missing_input).

#include <string>
#include <string_view>

namespace llmtrain {

/// Prints one line: "name value".
void inspect_line(std::string_view name, const std::string& value);

/// Prints what the manifest of a checkpoint says; sizes of files are checked, contents are not (llmtool verify does).
void inspect_checkpoint(const std::string& path);

/// Whether the file is HDF5 with a run's metrics rather than tokens. Main thread only.
bool is_metrics_file(const std::string& path);

/// Prints rows, first, last and least value and units of every column of a metrics.h5.
void inspect_metrics(const std::string& path);

/// Prints what the header of a file of safetensors says.
void inspect_safetensors(const std::string& path);

}  // namespace llmtrain
