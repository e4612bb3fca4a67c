#include "train/expert_metrics.hpp"

#include <fmt/format.h>

namespace llmtrain {

std::vector<std::string> expert_metric_names() {
  return {"experts/load_max", "experts/load_min", "experts/entropy", "experts/balance_loss", "experts/z_loss"};
}

void add_expert_metrics(StepRecord& record, const RouterLosses::Values& v) {
  const std::vector<double> values = {v.load_max, v.load_min, v.entropy, v.balance, v.z};
  const std::vector<std::string> names = expert_metric_names();
  for (size_t i = 0; i < names.size(); ++i) record.metrics.push_back({names[i], "", values[i]});
  for (size_t layer = 0; layer < v.by_layer_max.size(); ++layer) {
    record.details.push_back({fmt::format("experts/layer_{}/load_max", layer), "", v.by_layer_max[layer]});
    record.details.push_back({fmt::format("experts/layer_{}/load_min", layer), "", v.by_layer_min[layer]});
  }
}

}  // namespace llmtrain
