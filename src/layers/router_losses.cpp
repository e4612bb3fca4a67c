#include "layers/router_losses.hpp"

#include <algorithm>
#include <cmath>

#include "layers/sharing/shared_rows.hpp"
#include "parallel/mesh.hpp"

namespace llmtrain {

void RouterLosses::plan(Arena& arena) {
  const int64_t integers = router_statistics(experts_);
  arena.add(statistics_, MemoryCategory::activations, "router.statistics", DType::i64, {std::ssize(layers_), integers});
  arena.add(slope_, MemoryCategory::activations, "router.slope", DType::f32, {experts_});
  fetched_.resize(layers_.size() * static_cast<size_t>(integers));
  slopes_.resize(static_cast<size_t>(experts_));
  pairs_.resize(layers_.size() * static_cast<size_t>(experts_));
}

void RouterLosses::begin_step(double weight, double scale, double sign) {
  weight_ = weight;
  scale_ = scale;
  sign_ = sign;
  loss_.clear();
  balance_.clear();
  z_.clear();
  passes_ = 0;
  std::ranges::fill(pairs_, 0);
}

void RouterLosses::begin_pass(Stream& stream) { fill_zero(statistics_.data, statistics_.bytes(), stream); }

void RouterLosses::end_pass(int64_t rows, SharedRows* shared, Stream& stream, bool counts) {
  copy_to_host(fetched_.data(), statistics_.data, statistics_.bytes(), stream);
  stream.synchronize();
  Communicator* ranks = shared != nullptr ? shared->mesh().context() : nullptr;
  if (ranks != nullptr) ranks->sum(fetched_);
  const auto experts = static_cast<size_t>(experts_), integers = static_cast<size_t>(router_statistics(experts_));
  std::vector<double>& all = totals_;
  all.assign(integers, 0);
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (size_t i = 0; i < integers; ++i) all[i] += static_cast<double>(fetched_[l * integers + i]);
  }
  const double mean = 1.0 / static_cast<double>(std::ssize(layers_) * std::max<int64_t>(rows, 1));
  const double slope = static_cast<double>(experts_) * mean * mean;  // of the balance by a score, for each pair
  double balance = 0;
  for (size_t e = 0; e < experts; ++e) {
    const double pairs = all[e];
    balance += slope * pairs * (all[experts + e] * router_unit);
    slopes_[e] = static_cast<float>(scale_ * weight_ * coefficients_.balance * slope * pairs);
  }
  const double z = mean * all[2 * experts] * router_unit;
  log_sum_square_slope_ = scale_ * weight_ * coefficients_.z * mean;
  copy_to_device(slope_.data, slopes_.data(), slope_.bytes(), stream);
  if (!counts || (shared != nullptr && !shared->mesh().leads())) return;
  ++passes_;
  balance_.add(balance);
  z_.add(z);
  loss_.add(sign_ * weight_ * (coefficients_.balance * balance + coefficients_.z * z));
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (size_t e = 0; e < experts; ++e) pairs_[l * experts + e] += fetched_[l * integers + e];
  }
}

RouterLosses::Values RouterLosses::sum(Communicator& job) {
  job.sum(pairs_);
  job.sum({&passes_, 1});
  job.sum(balance_);
  job.sum(z_);
  const double passes = static_cast<double>(std::max<int64_t>(passes_, 1));
  Values values{0, HUGE_VAL, 0, balance_.value() / passes, z_.value() / passes, {}};
  const std::span<const int64_t> of_layers = pairs_;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto loads = of_layers.subspan(l * static_cast<size_t>(experts_), static_cast<size_t>(experts_));
    double all = 0, entropy = 0;
    for (const int64_t pairs : loads) all += static_cast<double>(pairs);
    for (const int64_t pairs : loads) {
      const double share = static_cast<double>(pairs) / std::max(all, 1.0);
      if (share > 0) entropy -= share * std::log(share);
    }
    const double load = static_cast<double>(experts_) / std::max(all, 1.0);
    const double load_max = load * static_cast<double>(std::ranges::max(loads));
    const double load_min = load * static_cast<double>(std::ranges::min(loads));
    values.layers.push_back({layers_[l], load_max, load_min});
    values.load_max = std::max(values.load_max, load_max);
    values.load_min = std::min(values.load_min, load_min);
    const double relative = experts_ > 1 ? entropy / std::log(static_cast<double>(experts_)) : 1;
    values.entropy += relative / static_cast<double>(layers_.size());
  }
  return values;
}

}  // namespace llmtrain
