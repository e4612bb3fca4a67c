#include "roles/model_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/state.hpp"
#include "core/error.hpp"
#include "hf/load_weights.hpp"

namespace llmtrain {

namespace {

constexpr size_t read_elements = size_t{1} << 18;  ///< elements of a checkpoint that are read at once

}  // namespace

RoleModel::RoleModel(RoleSpec spec)
    : spec_(std::move(spec)), model_(spec_.shape), params_(model_.units(), spec_.store) {}

void RoleModel::plan(Arena& arena) {
  params_.plan(arena);
  if (spec_.passes) model_.plan(arena, *spec_.passes);
}

void RoleModel::start(Communicator& communicator, Stream& stream) {
  params_.start(communicator, stream);
  model_.start(stream);
}

LoadedWeights RoleModel::load(Communicator& communicator, Stream& stream) {
  const WeightSource& from = spec_.weights;
  if (!from.checkpoint.empty()) {
    const Manifest manifest = from.manifest ? *from.manifest : verify_checkpoint(from.checkpoint, communicator);
    std::vector<float> buffer(read_elements);
    StoreParameters target(params_, stream);
    load_checkpoint(from.checkpoint, manifest, target, buffer, communicator);
    return {fmt::format("{}, step {}", from.checkpoint, manifest.step), {}};
  }
  if (!from.folder.empty()) {
    LoadReport report = load_weights(from.folder, spec_.shape, params_, communicator, stream);
    return {fmt::format("{}: {}", from.folder, load_text(report)), std::move(report.warnings)};
  }
  params_.initialize(from.seed);
  return {};
}

RoleModel& ModelSet::at(Role role) {
  const auto found = std::ranges::find(models_, role, &RoleModel::role);
  LLMTRAIN_CHECK(found != models_.end(), "the job has no model in this role");
  return *found;
}

void ModelSet::plan(Arena& arena) {
  for (RoleModel& model : models_) model.plan(arena);
}

void ModelSet::start(Communicator& communicator, Stream& stream) {
  for (RoleModel& model : models_) model.start(communicator, stream);
}

}  // namespace llmtrain
