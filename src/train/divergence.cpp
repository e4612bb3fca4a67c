#include "train/divergence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace llmtrain {
namespace {

std::string loss_name(size_t i) { return fmt::format("spike_loss_{:05}", i); }

int64_t count_of(const RunState& state, const std::string& name, int64_t otherwise) {
  const auto found = state.counters.find(name);
  return found == state.counters.end() ? otherwise : found->second;
}

}  // namespace

int64_t DivergenceGuard::data_step(int64_t n) const {
  for (const auto& [first, last] : skipped_) {
    if (n >= first) n += last - first;
  }
  return n;
}

std::optional<double> DivergenceGuard::z_score(double loss) const {
  const auto count = static_cast<int64_t>(losses_.size());
  if (config_.spike_z_score == 0 || count < config_.spike_window) return std::nullopt;
  double mean = 0, square = 0;
  for (const double x : losses_) mean += x;
  mean /= static_cast<double>(count);
  for (const double x : losses_) square += (x - mean) * (x - mean);
  const double deviation = std::sqrt(square / static_cast<double>(count));
  if (deviation == 0) return std::nullopt;
  return (loss - mean) / deviation;
}

std::string DivergenceGuard::check(int64_t n, std::optional<double> loss, double grad_norm, double loss_scale) {
  bad_.clear();
  if (loss && !std::isfinite(*loss)) {
    bad_ = "the loss is not finite";
  } else if (!std::isfinite(grad_norm)) {
    bad_ = "the gradient norm is not finite";
    if (loss_scale > 0) bad_ += fmt::format(" at a loss scale of {:g}, which cannot fall", loss_scale);
  } else if (const auto z = loss ? z_score(*loss) : std::nullopt; z && *z > config_.spike_z_score) {
    bad_ = fmt::format("the loss {:.4f} is {:.1f} standard deviations above the mean of {} steps", *loss, *z,
                       losses_.size());
  }
  if (!bad_.empty()) {
    ++bad_steps_;
    ++bad_in_row_;
    bad_data_end_ = data_step(n) + 1;
    return bad_;
  }
  if (!loss) return bad_;
  bad_in_row_ = 0;
  if (config_.spike_z_score > 0) losses_.push_back(*loss);
  while (static_cast<int64_t>(losses_.size()) > config_.spike_window) losses_.pop_front();
  return bad_;
}

void DivergenceGuard::lose(int64_t n, const std::string& why) {
  lost_ = why;
  bad_data_end_ = n > 0 ? data_step(n - 1) + 1 : 0;
}

std::string DivergenceGuard::reason() const {
  if (!lost_.empty()) return lost_;
  return bad_in_row_ > 1 ? fmt::format("{}, as one of {} bad steps in a row", bad_, bad_in_row_) : bad_;
}

void DivergenceGuard::saved(int64_t step, bool scheduled, int64_t best) {
  if (!sound() || (target_scheduled_ && !scheduled)) return;
  if (step != target_) rollbacks_ = 0;
  target_ = step;
  best_of_target_ = best;
  target_scheduled_ = scheduled;
}

DivergenceGuard::Range DivergenceGuard::roll_back(const DivergenceGuard& before, int64_t step, int64_t best) {
  rollbacks_ = before.rollbacks_ + 1;
  target_ = step;
  best_of_target_ = best;
  const int64_t first = data_step(step);
  const Range range{first, std::max({first + config_.skip_steps, before.bad_data_end_, first})};
  if (range.last > range.first) skipped_.emplace_back(range.first, range.last);
  return range;
}

void DivergenceGuard::save(RunState& state) const {
  state.skipped = skipped_;
  state.counters["bad_steps"] = bad_steps_;
  state.counters["bad_in_row"] = bad_in_row_;
  state.counters["bad_data_end"] = bad_data_end_;
  state.counters["rollbacks"] = rollbacks_;
  if (target_ >= 0) {
    state.counters["rollback_step"] = target_;
    state.counters["rollback_step_scheduled"] = target_scheduled_ ? 1 : 0;
    if (best_of_target_ >= 0) state.counters["rollback_best"] = best_of_target_;
  }
  for (size_t i = 0; i < losses_.size(); ++i) state.values[loss_name(i)] = losses_[i];
}

void DivergenceGuard::restore(const RunState& state, bool own) {
  *this = DivergenceGuard(config_);
  skipped_ = state.skipped;
  bad_steps_ = count_of(state, "bad_steps", 0);
  bad_in_row_ = count_of(state, "bad_in_row", 0);
  bad_data_end_ = count_of(state, "bad_data_end", 0);
  if (own) {
    rollbacks_ = count_of(state, "rollbacks", 0);
    target_ = count_of(state, "rollback_step", -1);
    target_scheduled_ = count_of(state, "rollback_step_scheduled", 0) != 0;
    best_of_target_ = count_of(state, "rollback_best", -1);
  }
  for (size_t i = 0;; ++i) {
    const auto found = state.values.find(loss_name(i));
    if (found == state.values.end()) break;
    if (config_.spike_z_score > 0) losses_.push_back(found->second);
  }
  while (static_cast<int64_t>(losses_.size()) > config_.spike_window) losses_.pop_front();
}

}  // namespace llmtrain
