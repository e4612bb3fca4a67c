#pragma once
// Exact sums of a step over all ranks, and what follows from them: the loss, the norm of the gradients, and whether the
// update takes place. Either the device adds them and decides, or the host does.

#include <cstdint>
#include <vector>

#include "core/exact_sum.hpp"
#include "device/device.hpp"
#include "kernels/step_decision.hpp"
#include "metrics/records.hpp"
#include "objectives/objective.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Device memory of the sums: int64 [metrics + 1, ExactSum::integer_count], the objective's sums and squared gradients.
struct StepSums {
  Tensor integers;
  Tensor decision;  ///< fp64 [2], a StepDecision; empty if the host decides

  int64_t metrics() const { return integers.dim(0) - 1; }
  Tensor of_objective() const { return integers.rows(0, metrics()); }
  Tensor of_gradients() const { return integers.rows(metrics(), 1); }
};

class StepValues {
 public:
  StepValues(const StepSums& sums, const Objective& objective, Communicator& communicator, Stream& stream);

  void clear();
  /// True if the device decides about updates; the same on all ranks.
  bool device_decides() const { return !sums_.decision.empty() && communicator_.sums_on_device(); }
  /// Adds the sums of all ranks on the device, which then decides. divisor: that of the gradient sums; max_grad_norm: 0
  /// = gradients are not clipped.
  void decide_on_device(double divisor, double max_grad_norm);
  /// Starts the transfer of sums and decision to the host.
  void fetch();
  /// Adds the sums of all ranks on the host, and this rank's `loss` to the first.
  void sum_on_host(const ExactSum& loss);
  /// Waits for the transfer, after decide_on_device().
  void wait();
  /// Returns the decision of the device.
  bool applies() const { return static_cast<const StepDecision*>(decision_.data())->applies != 0; }
  /// count: what the objective counted in the step.
  double loss(int64_t count) const;
  std::vector<NamedValue> metrics(int64_t count) const;  ///< the objective's values besides the loss
  double grad_norm(double divisor) const;

 private:
  double sum(int64_t row) const;

  StepSums sums_;
  const Objective& objective_;
  Communicator& communicator_;
  Stream& stream_;
  PinnedBuffer integers_, decision_;  ///< on the host
  Event fetched_;
};

}  // namespace llmtrain
