#include "report/assets.hpp"

#include "core/error.hpp"

namespace llmtrain {

std::string_view asset(std::string_view name) {
  for (const Asset* found = assets; !found->name.empty(); ++found) {
    if (found->name == name) return found->content;
  }
  throw Error("no file " + std::string(name) + " is embedded");
}

}  // namespace llmtrain
