#include <fmt/format.h>

#include <algorithm>

#include "layers/context.hpp"

namespace llmtrain {

ParamRef UnitBuilder::add(ParamSpec spec) {
  if (spec.slices.empty()) spec.slices.push_back({spec.name, 0, spec.rows});
  const bool trained = std::ranges::any_of(spec.slices, [&](const ParamSlice& s) { return is_trained(s.name); });
  for (ParamSlice& slice : spec.slices) slice.fixed = trained && !is_trained(slice.name);
  const std::optional<Quantization> quantization = trained ? std::nullopt : quantization_of(spec);
  return add(std::move(spec), trained, quantization);
}

/// Storage of a frozen parameter: that of all its slices, or none.
std::optional<Quantization> UnitBuilder::quantization_of(const ParamSpec& spec) const {
  if (!quantization_ || !spec.decay || spec.columns == 1) return std::nullopt;
  const std::optional<Quantization> first = quantization_(spec.slices.front().name);
  const bool same =
      std::ranges::all_of(spec.slices, [&](const ParamSlice& s) { return quantization_(s.name) == first; });
  LLMTRAIN_CHECK(same, "the modules of one matrix have one storage: " + spec.name);
  return first;
}

ParamRef UnitBuilder::add(ParamSpec spec, bool trained, const std::optional<Quantization>& quantization) {
  if (spec.slices.empty()) spec.slices.push_back({spec.name, 0, spec.rows});
  const auto begin = units_.begin() + first_;
  const auto found = std::find_if(begin, units_.end(), [&](const UnitSpec& u) {
    return u.trained == trained && u.quantization == quantization && is_of_blocks(u);
  });
  const int unit = found != units_.end() ? static_cast<int>(found - units_.begin()) : add_unit(trained, quantization);
  std::vector<ParamSpec>& params = units_[static_cast<size_t>(unit)].params;
  params.push_back(std::move(spec));
  return {unit, static_cast<int>(params.size()) - 1, trained};
}

int UnitBuilder::add_unit(bool trained, const std::optional<Quantization>& quantization) {
  std::string name = name_;
  if (block_ >= 0) name += fmt::format(".tensor.{}", block_);
  if (expert_block_ >= 0) name += fmt::format(".experts.{}", expert_block_);
  UnitSpec unit{name, {}};
  unit.trained = trained;
  unit.quantization = quantization;
  unit.same_layer_as_previous = group().count > 0;
  unit.tensor_block = block_;
  unit.expert_block = expert_block_;
  if (quantization) unit.name += ".quantized";
  units_.push_back(std::move(unit));
  const auto begin = units_.begin() + first_;
  if (std::count_if(begin, units_.end(), [&](const UnitSpec& u) { return is_of_blocks(u); }) > 1) {
    for (auto u = begin; u != units_.end(); ++u) {
      if (is_of_blocks(*u) && u->trained) u->name = name + ".trained";
    }
  }
  return static_cast<int>(units_.size()) - 1;
}

}  // namespace llmtrain
