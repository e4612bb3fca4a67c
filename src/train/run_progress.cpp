#include "train/run_progress.hpp"

#include "train/run/resume.hpp"

namespace llmtrain {

void RunProgress::save(RunState& state) const {
  best.save(state);
  if (pending.evaluation) state.counters[pending_evaluation] = 1;
  if (pending.samples) state.counters[pending_samples] = 1;
  guard.save(state);
  if (!scaler.active()) return;
  const LossScaleState& scaling = scaler.state();
  state.values["loss_scale"] = scaling.scale;
  state.counters["loss_scale_clean_steps"] = scaling.clean_steps;
  state.counters["loss_scale_overflows_left"] = scaling.overflows_left;
  state.counters["skipped_steps"] = scaling.skipped_steps;
}

bool RunProgress::restore(const RunState& state, bool own) {
  const bool same_metric = best.restore(state, own);
  pending = {is_pending(state, pending_evaluation), is_pending(state, pending_samples)};
  guard.restore(state, own);
  if (state.values.contains("loss_scale")) {
    LossScaleState scaling;
    take(state.values, "loss_scale", scaling.scale);
    take(state.counters, "loss_scale_clean_steps", scaling.clean_steps);
    take(state.counters, "loss_scale_overflows_left", scaling.overflows_left);
    take(state.counters, "skipped_steps", scaling.skipped_steps);
    scaler.restore(scaling);
  }
  return same_metric;
}

}  // namespace llmtrain
