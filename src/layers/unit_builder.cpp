#include <algorithm>

#include "layers/context.hpp"

namespace llmtrain {

ParamRef UnitBuilder::add(ParamSpec spec) {
  if (spec.slices.empty()) spec.slices.push_back({spec.name, 0, spec.rows});
  const bool trained = std::ranges::any_of(spec.slices, [&](const ParamSlice& s) { return is_trained(s.name); });
  for (ParamSlice& slice : spec.slices) slice.fixed = trained && !is_trained(slice.name);
  return add(std::move(spec), trained);
}

ParamRef UnitBuilder::add(ParamSpec spec, bool trained) {
  if (spec.slices.empty()) spec.slices.push_back({spec.name, 0, spec.rows});
  const auto begin = units_.begin() + first_;
  const auto found = std::find_if(begin, units_.end(), [&](const UnitSpec& u) { return u.trained == trained; });
  const int unit = found != units_.end() ? static_cast<int>(found - units_.begin()) : add_unit(trained);
  std::vector<ParamSpec>& params = units_[static_cast<size_t>(unit)].params;
  params.push_back(std::move(spec));
  return {unit, static_cast<int>(params.size()) - 1, trained};
}

int UnitBuilder::add_unit(bool trained) {
  UnitSpec unit{name_, {}};
  unit.trained = trained;
  unit.beside = group().count > 0;
  if (unit.beside) (trained ? unit : units_.back()).name += ".trained";
  units_.push_back(std::move(unit));
  return static_cast<int>(units_.size()) - 1;
}

}  // namespace llmtrain
