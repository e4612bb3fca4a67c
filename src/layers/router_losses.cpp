#include "layers/router_losses.hpp"

#include <algorithm>
#include <cmath>

#include "layers/sharing/shared_rows.hpp"
#include "parallel/mesh.hpp"

namespace llmtrain {

void RouterLosses::plan(Arena& arena) {
  const int64_t integers = router_statistics(experts_);
  arena.add(statistics_, MemoryCategory::activations, "router.statistics", DType::i64, {layers_, integers});
  arena.add(slope_, MemoryCategory::activations, "router.slope", DType::f32, {experts_});
  fetched_.resize(static_cast<size_t>(layers_ * integers));
  slopes_.resize(static_cast<size_t>(experts_));
  pairs_.resize(static_cast<size_t>(layers_ * experts_));
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

void RouterLosses::end_pass(int64_t rows, SharedRows* shared, Stream& stream) {
  copy_to_host(fetched_.data(), statistics_.data, statistics_.bytes(), stream);
  stream.synchronize();
  Communicator* ranks = shared != nullptr ? shared->mesh().context() : nullptr;
  if (ranks != nullptr) ranks->sum(fetched_);
  const auto experts = static_cast<size_t>(experts_), integers = static_cast<size_t>(router_statistics(experts_));
  std::vector<int64_t>& all = totals_;
  all.assign(integers, 0);
  for (size_t l = 0; l < static_cast<size_t>(layers_); ++l) {
    for (size_t i = 0; i < integers; ++i) all[i] += fetched_[l * integers + i];
  }
  const double mean = 1.0 / static_cast<double>(layers_ * std::max<int64_t>(rows, 1));
  const double slope = static_cast<double>(experts_) * mean * mean;  // of the balance by a score, for each pair
  double balance = 0;
  for (size_t e = 0; e < experts; ++e) {
    const auto pairs = static_cast<double>(all[e]);
    balance += slope * pairs * (static_cast<double>(all[experts + e]) * router_unit);
    slopes_[e] = static_cast<float>(scale_ * weight_ * coefficients_.balance * slope * pairs);
  }
  const double z = mean * static_cast<double>(all[2 * experts]) * router_unit;
  log_sum_square_slope_ = scale_ * weight_ * coefficients_.z * mean;
  copy_to_device(slope_.data, slopes_.data(), slope_.bytes(), stream);
  if (shared != nullptr && !shared->mesh().leads()) return;
  ++passes_;
  balance_.add(balance);
  z_.add(z);
  loss_.add(sign_ * weight_ * (coefficients_.balance * balance + coefficients_.z * z));
  for (size_t l = 0; l < static_cast<size_t>(layers_); ++l) {
    for (size_t e = 0; e < experts; ++e) pairs_[l * experts + e] += fetched_[l * integers + e];
  }
}

RouterLosses::Values RouterLosses::sum(Communicator& job) {
  job.sum(pairs_);
  job.sum({&passes_, 1});
  job.sum(balance_);
  job.sum(z_);
  const double passes = static_cast<double>(std::max<int64_t>(passes_, 1));
  Values values{0, HUGE_VAL, 0, balance_.value() / passes, z_.value() / passes, {}, {}};
  for (auto layer = pairs_.begin(); layer != pairs_.end(); layer += experts_) {
    const auto end = layer + experts_;
    double all = 0, entropy = 0;
    for (auto pairs = layer; pairs != end; ++pairs) all += static_cast<double>(*pairs);
    for (auto pairs = layer; pairs != end; ++pairs) {
      const double share = static_cast<double>(*pairs) / std::max(all, 1.0);
      if (share > 0) entropy -= share * std::log(share);
    }
    const double load = static_cast<double>(experts_) / std::max(all, 1.0);
    values.by_layer_max.push_back(load * static_cast<double>(*std::max_element(layer, end)));
    values.by_layer_min.push_back(load * static_cast<double>(*std::min_element(layer, end)));
    if (experts_ > 1)
      values.entropy += entropy / std::log(static_cast<double>(experts_)) / static_cast<double>(layers_);
  }
  values.load_max = std::ranges::max(values.by_layer_max);
  values.load_min = std::ranges::min(values.by_layer_min);
  return values;
}

}  // namespace llmtrain
