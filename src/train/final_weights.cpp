#include "train/final_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "hf/adapters/merge.hpp"
#include "hf/weights/folder_values.hpp"
#include "hf/weights/slice_writer.hpp"
#include "parallel/job/cancellable_work.hpp"

namespace llmtrain {
namespace {

/// The part of a checkpoint that is read.
struct MasterWeights : StoreState {
  using StoreState::StoreState;
  bool wants(size_t plane) const override { return plane == master_plane; }
};

/// Frozen weights of 16 bits are those of the folder that they were read from, not their rounded values.
void export_policy(const ExportOptions& options, RoleModel& policy, Communicator& communicator) {
  ParamStore& params = policy.params();
  const std::string& folder = policy.weights().folder;
  const bool rounded = params.units().trained_parameters() < params.units().parameters() && !folder.empty();
  std::optional<FolderValues> stored;
  throw_on_all_ranks(communicator, [&] {
    if (rounded && communicator.rank() == 0) stored.emplace(folder, policy.shape(), policy.whole_units());
  });
  const auto gather = [&](int unit, int64_t begin, int64_t end, float* out) {
    policy.gather(unit, begin, end, out);
    const bool frozen = !policy.whole_units()[static_cast<size_t>(unit)].trained;
    if (stored && frozen) stored->read(unit, begin, end, out);
  };
  export_model(options, policy.shape(), policy.whole_units(), gather, communicator);
}

}  // namespace

void load_best_weights(const RunContext& run, RunCheckpoints& checkpoints, const std::string& metric,
                       int64_t completed) {
  const int64_t best_step = run.progress.best.step();
  const int64_t saved = checkpoints.best_saved();
  if (saved != best_step) {  // evaluated before the deck requested the best
    run.log.warn(fmt::format(
        "the best evaluation, after step {}, has no checkpoint: {}", best_step,
        saved < 0 ? "the last weights are used instead" : fmt::format("that of step {} is used instead", saved)));
  }
  if (saved < 0 || saved == completed) return;
  const SectionScope section(Section::resuming);
  Communicator& communicator = run.runtime.communicator();
  const std::string path = checkpoints.folder() + "/" + checkpoint_name(saved);
  Manifest manifest;
  try {
    manifest = verify_checkpoint(path, communicator);
  } catch (const UserError& error) {  // the error is the same on all ranks
    if (error.code() == ExitCode::stopped) throw;
    if (checkpoints.saved_step() != completed) {  // if checkpoint.at_end is false
      checkpoints.save(completed, now());
      checkpoints.finish();
    }
    throw UserError(error.code(),
                    fmt::format("the best checkpoint, of step {}, cannot be read:\n{}\nThe run itself is complete, and "
                                "saved as {}. Restore the best checkpoint, or use the last weights with "
                                "checkpoint.export=last evaluation.load_best_at_end=false; then submit again",
                                saved, error.what(), checkpoint_name(completed)));
  }
  std::vector<float> buffer(size_t{1} << 18);
  MasterWeights parameters(run.plan.params(), run.runtime.stream());
  load_checkpoint(path, manifest, parameters, buffer, communicator);
  run.log.print(fmt::format("weights    of the best evaluation, after step {} ({})", saved, metric));
}

void write_adapters(const RunContext& run, const std::string& folder) {
  const SectionScope section(Section::exporting);
  run.plan.models.at(Role::policy).write_adapters(folder, run.runtime.communicator());
}

void export_final_weights(const RunContext& run, const CheckpointConfig& config, ExportOptions options,
                          const std::string& adapter, const std::string& tokenizer,
                          const std::vector<std::string>& added_tokens) {
  Communicator& communicator = run.runtime.communicator();
  const SectionScope section(Section::exporting);
  RoleModel& policy = run.plan.models.at(Role::policy);
  options.overwrite = true;
  options.type = weight_type_of(name_of(config.export_dtype));
  options.file_bytes = config.export_file_size;
  throw_on_all_ranks(communicator, [&] {
    const bool writes = communicator.rank() == 0 && run.plan.tokenizer != nullptr;
    if (!writes) return;
    const std::string warning = carry_tokenizer(options, *run.plan.tokenizer, tokenizer, added_tokens);
    if (!warning.empty()) run.log.warn(warning);
  });
  if (policy.has_adapters()) {
    const std::string& folder = policy.weights().folder;
    run_cancellable(communicator, "while the adapters were merged", [&](const Pause& pause) {
      if (communicator.rank() == 0) merge_adapter(folder, adapter, options, pause, false, MergeBase::as_stored);
    });
    const bool quantized = std::ranges::any_of(units_of(policy.params()),
                                               [](const UnitSpec& unit) { return unit.quantization.has_value(); });
    if (quantized) {
      run.log.warn(
          fmt::format("{}: the adapters were trained on its quantised matrices, and were merged into the weights that "
                      "its files have; where these are in 16 bits, that is another model (llmtool merge --base)",
                      folder));
    }
  } else {
    export_policy(options, policy, communicator);
  }
  run.log.print("exported   " + options.output);
}

}  // namespace llmtrain
