#pragma once
// Modules of a model by their names, as in PyTorch: those with parameters, and those that contain them.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder.hpp"
#include "models/module_pattern.hpp"

namespace llmtrain {

using NameSet = std::set<std::string, std::less<>>;

/// "model.norm.weight" -> "model.norm"
std::string_view parent_module(std::string_view name);
/// "model.norm" -> "norm"
std::string_view last_part_of(std::string_view module);
NameSet last_parts_of(const NameSet& modules);

struct ModelModules {
  NameSet linear;  ///< what can be adapted: without routers of experts
  NameSet tables;  ///< embeddings and the head, of either kind
  NameSet all;
  std::string head, embedding;

  ModelModules(const DecoderNames& names, const std::vector<UnitSpec>& units);

  /// Throws UserError for a regular expression that cannot be used.
  NameSet matched(const ModulePattern& pattern) const;
  /// Modules that modules_to_save names: those whose name ends so.
  NameSet saved_by(std::string_view end) const;

 private:
  bool is_router(std::string_view module) const;
  void add(const std::string& tensor, bool matrix);

  std::vector<std::string> router_ends_;  ///< of names, after the number of the layer
};

}  // namespace llmtrain
