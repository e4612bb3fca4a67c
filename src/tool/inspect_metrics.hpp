#pragma once
#include <string>

namespace llmtrain {

/// Whether the file is HDF5 with a run's metrics rather than tokens. Main thread only.
bool is_metrics_file(const std::string& path);

/// Prints rows, first, last and least value and units of every column of a metrics.h5. UserError(bad_content).
void inspect_metrics(const std::string& path);

}  // namespace llmtrain
