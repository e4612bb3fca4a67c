#pragma once
// The embedded files of pages: uPlot with its licence, and styles and scripts.

#include "core/assets.hpp"

namespace llmtrain {

extern const Asset report_assets[];  ///< generated

/// Returns the content of the file: "uplot.js", "uplot.css", "uplot.licence", or a file of src/*/page by its name.
/// Throws Error for another name.
inline std::string_view asset(std::string_view name) { return find_asset(report_assets, name); }

}  // namespace llmtrain
