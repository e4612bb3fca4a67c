#pragma once
#include <string>

namespace llmtrain {

/// Returns true if the HDF5 file holds a run's metrics rather than tokens. Main thread only.
bool is_metrics_file(const std::string& path);

/// Prints rows, first, last and smallest value and units of every column of a metrics.h5. Throws
/// UserError(bad_content).
void inspect_metrics(const std::string& path);

}  // namespace llmtrain
