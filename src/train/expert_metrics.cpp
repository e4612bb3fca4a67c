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
  for (const RouterLosses::LayerLoad& load : v.layers) {
    record.details.push_back({fmt::format("experts/layer_{}/load_max", load.layer), "", load.load_max});
    record.details.push_back({fmt::format("experts/layer_{}/load_min", load.layer), "", load.load_min});
  }
}

}  // namespace llmtrain
