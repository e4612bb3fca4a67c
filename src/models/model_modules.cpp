#include "models/model_modules.hpp"

#include <algorithm>

#include "params/unit_layout.hpp"

namespace llmtrain {

std::string_view parent_module(std::string_view name) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot == std::string_view::npos ? 0 : dot);
}

std::string_view last_part_of(std::string_view module) { return module.substr(module.rfind('.') + 1); }

NameSet last_parts_of(const NameSet& modules) {
  NameSet parts;
  for (const std::string& module : modules) parts.emplace(last_part_of(module));
  return parts;
}

ModelModules::ModelModules(const DecoderNames& names, const std::vector<UnitSpec>& units)
    : tables{names.head, names.score, names.embedding, names.positions}, head(names.head), embedding(names.embedding) {
  for (const std::string& name : {names.router, names.shared_router}) {
    if (!name.empty()) router_ends_.push_back(name.substr(name.rfind('}') + 1));
  }
  all.insert(head);  // a tied one too
  for_each_slice(units,
                 [&](SlicePlace, const ParamSpec& param, const ParamSlice& slice) { add(slice.name, param.decay); });
}

bool ModelModules::is_router(std::string_view module) const {
  return std::ranges::any_of(router_ends_, [&](const std::string& end) { return module.ends_with(end); });
}

void ModelModules::add(const std::string& tensor, bool matrix) {
  const std::string_view module = parent_module(tensor);
  if (matrix && !tables.contains(module) && !is_router(module)) linear.emplace(module);
  for (std::string_view name = module; !name.empty(); name = parent_module(name)) all.emplace(name);
}

NameSet ModelModules::matched(const ModulePattern& pattern) const {
  const ModuleMatcher matcher(pattern);
  NameSet found;
  for (const std::string& module : all) {
    if (matcher.matches(module)) found.insert(module);
  }
  return found;
}

NameSet ModelModules::saved_by(std::string_view end) const {
  NameSet found;
  for (const std::string& module : all) {
    if (!end.empty() && module.ends_with(end)) found.insert(module);
  }
  return found;
}

}  // namespace llmtrain
