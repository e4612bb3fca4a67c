#pragma once
// Files that are embedded at build time (cmake/Embed.cmake): uPlot with its licence, and styles and scripts of pages.

#include <string_view>

namespace llmtrain {

struct Asset {
  std::string_view name, content;
};

extern const Asset assets[];  ///< generated; ends with an empty name

/// Returns the content of the file: "uplot.js", "uplot.css", "uplot.licence", or a file of src/*/page by its name.
/// Throws Error for another name.
std::string_view asset(std::string_view name);

}  // namespace llmtrain
