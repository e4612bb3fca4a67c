#pragma once
// Files that are embedded at build time (cmake/Embed.cmake).

#include <string>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

struct Asset {
  std::string_view name, content;
};

/// Returns the content of a file among a layer's assets, which end with an empty name. Throws Error for another name.
inline std::string_view find_asset(const Asset* assets, std::string_view name) {
  for (const Asset* found = assets; !found->name.empty(); ++found) {
    if (found->name == name) return found->content;
  }
  throw Error("no file " + std::string(name) + " is embedded");
}

}  // namespace llmtrain
