#pragma once
// Files that are embedded at build time (cmake/Embed.cmake): uPlot with its licence, and styles and scripts of pages.

#include <string>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

struct Asset {
  std::string_view name, content;
};

extern const Asset assets[];  ///< generated; ends with an empty name

/// Returns the content of the file: "uplot.js", "uplot.css", "uplot.licence", or a file of src/*/page by its name.
/// Throws Error for another name.
inline std::string_view asset(std::string_view name) {
  for (const Asset* found = assets; !found->name.empty(); ++found) {
    if (found->name == name) return found->content;
  }
  throw Error("no file " + std::string(name) + " is embedded");
}

}  // namespace llmtrain
