// The part of the trainer that reads initial weights and exports the result.

#include <fmt/format.h>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "hf/export.hpp"
#include "hf/load_weights.hpp"
#include "text/files/tokenizer_files.hpp"
#include "train/checkpoint_model.hpp"
#include "train/run/run_directory.hpp"
#include "train/trainer_run.hpp"

namespace llmtrain {

void Trainer::set_weights(Run& run) {
  const ModelConfig& model = config_.model;
  if (model.path.empty()) return params_.initialize(static_cast<uint64_t>(config_.run.seed));
  Communicator& communicator = run.runtime.communicator();
  const LoadReport report = load_weights(model.path, shape_, params_, communicator, run.ctx.stream);
  run.log.print(fmt::format("weights    {}: {}", model.path, load_text(report)));
  for (const std::string& warning : report.warnings) run.log.warn(warning);
}

void Trainer::read_texts(Run& run) {
  const std::string& path = config_.model.path;
  const std::string& instead = config_.source.instead;
  if (tokenizer_ != nullptr) {
    for (const std::string& warning : tokenizer_->warnings()) run.log.warn(warning);
  }
  if (path.empty()) return;
  throw_on_all_ranks(run.runtime.communicator(), [&] {
    if (run.runtime.communicator().rank() != 0) return;
    run.texts = instead.empty() ? model_texts(path) : CheckpointModel::texts(instead);
    for (const char* name : {"config.json", "generation_config.json"}) {
      if (const auto text = run.texts.find(name); text != run.texts.end()) run.kept_texts.insert(*text);
    }
    if (config_.checkpoint.export_model == CheckpointConfig::Export::none) run.texts.clear();
  });
}

namespace {

struct Parameters : StoreState {
  using StoreState::StoreState;
  bool wants(StateKind kind) const override { return kind == StateKind::master; }
};

}  // namespace

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step.
void Trainer::load_best(Run& run, int64_t completed) {
  if (run.best_saved != run.best_step) {  // evaluated before the deck requested the best
    run.log.warn(fmt::format("the best evaluation, after step {}, has no checkpoint: {}", run.best_step,
                             run.best_saved < 0 ? "the last weights are used instead"
                                                : fmt::format("that of step {} is used instead", run.best_saved)));
  }
  if (run.best_saved < 0 || run.best_saved == completed) return;
  const SectionScope section(Section::resuming);
  Communicator& communicator = run.runtime.communicator();
  const std::string path = RunDirectory::path_of(config_) + "/checkpoints/" + checkpoint_name(run.best_saved);
  Manifest manifest;
  try {
    manifest = verify_checkpoint(path, communicator);
  } catch (const UserError& error) {  // the error is the same on all ranks
    if (error.code() == ExitCode::stopped) throw;
    if (run.saved_step != completed) {  // if checkpoint.at_end is false
      save(run, completed, now());
      run.saver->finish();
    }
    throw UserError(error.code(),
                    fmt::format("the best checkpoint, of step {}, cannot be read:\n{}\nThe run itself is complete, and "
                                "saved as {}. Restore the best checkpoint, or use the last weights with "
                                "checkpoint.export=last evaluation.load_best_at_end=false; then submit again",
                                run.best_saved, error.what(), checkpoint_name(completed)));
  }
  std::vector<float> buffer(size_t{1} << 18);
  Parameters parameters(params_, run.ctx.stream);
  load_checkpoint(path, manifest, parameters, buffer, communicator);
  run.log.print(fmt::format("weights    of the best evaluation, after step {} ({})", run.best_saved,
                            name_of(config_.checkpoint.best_metric)));
}

void Trainer::export_weights(Run& run) {
  const SectionScope section(Section::exporting);
  const CheckpointConfig& checkpoint = config_.checkpoint;
  ExportOptions options;
  options.output = RunDirectory::path_of(config_) + "/export";
  options.overwrite = true;
  options.type = weight_type_of(name_of(checkpoint.export_dtype));
  options.file_bytes = checkpoint.export_file_size;
  options.texts = run.texts;
  throw_on_all_ranks(run.runtime.communicator(), [&] {
    const bool writes = run.runtime.communicator().rank() == 0 && tokenizer_ != nullptr;
    if (!writes) return;
    const std::string warning = carry_tokenizer(options, *tokenizer_, config_.data.tokenizer);
    if (!warning.empty()) run.log.warn(warning);
  });
  export_model(options, shape_, params_, run.runtime.communicator());
  run.log.print("exported   " + options.output);
}

}  // namespace llmtrain
