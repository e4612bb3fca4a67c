#pragma once
// Names of a critic's units and parameters, which lie beside those of its policy.

#include <string_view>

#include "core/params.hpp"

namespace llmtrain {

inline constexpr std::string_view critic_prefix = "critic.";

/// Begins the names of a unit and its parameters.
inline void add_prefix(UnitSpec& unit, std::string_view prefix) {
  unit.name.insert(0, prefix);
  for (ParamSpec& param : unit.params) {
    param.name.insert(0, prefix);
    for (ParamSlice& slice : param.slices) slice.name.insert(0, prefix);
  }
}

/// Removes as many characters from the names of a unit's parameters.
inline void remove_prefix(UnitSpec& unit, size_t length) {
  for (ParamSpec& param : unit.params) {
    param.name.erase(0, length);
    for (ParamSlice& slice : param.slices) slice.name.erase(0, length);
  }
}

}  // namespace llmtrain
