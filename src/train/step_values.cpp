#include "train/step_values.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/elementwise.hpp"

namespace llmtrain {

namespace {

constexpr int64_t sum_bytes = ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t));

}  // namespace

StepValues::StepValues(const StepSums& sums, const Objective& objective, Communicator& communicator, Stream& stream)
    : sums_(sums),
      objective_(objective),
      communicator_(communicator),
      stream_(stream),
      integers_((sums.metrics() + 1) * sum_bytes),
      decision_(sizeof(StepDecision)) {}

void StepValues::clear() { fill_zero(sums_.integers.data, sums_.integers.bytes(), stream_); }

void StepValues::decide_on_device(double divisor, double max_grad_norm) {
  carry_sums(sums_.integers, stream_);
  communicator_.sum_on_device(sums_.integers, stream_).finish(stream_);
  decide_step(sums_.decision, sums_.integers, divisor, max_grad_norm, stream_);
}

void StepValues::fetch() {
  copy_to_host(integers_.data(), sums_.integers.data, sums_.integers.bytes(), stream_);
  if (!device_decides()) return;
  copy_to_host(decision_.data(), sums_.decision.data, sums_.decision.bytes(), stream_);
  fetched_.record(stream_);
}

void StepValues::sum_on_host(const ExactSum& loss) {
  stream_.synchronize();
  auto* integers = static_cast<int64_t*>(integers_.data());
  for (int64_t row = 0; row <= sums_.metrics(); ++row) {
    const std::span<int64_t> place(integers + row * ExactSum::integer_count, ExactSum::integer_count);
    ExactSum sum;
    std::copy(place.begin(), place.end(), sum.limbs().begin());
    if (row == 0) sum.add(loss);
    communicator_.sum(sum);
    std::copy(sum.limbs().begin(), sum.limbs().end(), place.begin());
  }
}

void StepValues::wait() {
  if (!fetched_.reached()) fetched_.synchronize();
}

double StepValues::sum(int64_t row) const {
  ExactSum sum;
  const auto* integers = static_cast<const int64_t*>(integers_.data()) + row * ExactSum::integer_count;
  std::copy_n(integers, ExactSum::integer_count, sum.limbs().begin());
  return sum.value();
}

double StepValues::loss(int64_t count) const {
  return objective_.metrics().front().factor * sum(0) / static_cast<double>(std::max<int64_t>(count, 1));
}

std::vector<NamedValue> StepValues::metrics(int64_t count) const {
  std::vector<NamedValue> values;
  const std::span<const MetricSpec> specs = objective_.metrics();
  std::vector<double> sums;
  for (size_t m = 0; m < specs.size() && specs.size() > 1; ++m) sums.push_back(sum(static_cast<int64_t>(m)));
  for (size_t m = 1; m < specs.size(); ++m) {
    values.push_back({std::string(specs[m].name), std::string(specs[m].label), metric_value(specs, sums, m, count)});
  }
  return values;
}

double StepValues::grad_norm(double divisor) const { return std::sqrt(sum(sums_.metrics())) / divisor; }

}  // namespace llmtrain
