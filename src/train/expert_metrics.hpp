#pragma once
// Metrics of models with experts: their load, and the losses of routers.

#include <string>
#include <vector>

#include "layers/router_losses.hpp"
#include "metrics/records.hpp"

namespace llmtrain {

/// Names in the ledger, in their order.
std::vector<std::string> expert_metric_names();
/// Appends the values of a step, and those of each layer for the files of metrics.
void add_expert_metrics(StepRecord& record, const RouterLosses::Values& values);

}  // namespace llmtrain
