#pragma once
// Reports of llmtool inspect for each kind of file. They throw UserError(bad_content or missing_input).

#include <string>
#include <string_view>

namespace llmtrain {

/// Prints one line: "name value".
void inspect_line(std::string_view name, const std::string& value);

/// Prints the manifest of a checkpoint; checks sizes of files, but not contents (llmtool verify does).
void inspect_checkpoint(const std::string& path);

/// Returns true if the file is HDF5 with a run's metrics rather than tokens. Main thread only.
bool is_metrics_file(const std::string& path);

/// Prints rows, first, last and smallest value and units of every column of a metrics.h5.
void inspect_metrics(const std::string& path);

/// Prints the header of a safetensors file.
void inspect_safetensors(const std::string& path);

}  // namespace llmtrain
