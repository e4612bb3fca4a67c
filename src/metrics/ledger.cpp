#include "metrics/ledger.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace llmtrain {
namespace {

/// Not a number has a sign that means nothing.
std::string exact(double value) { return std::isnan(value) ? "nan" : fmt::format("{:a}", value); }

}  // namespace

std::string ledger_line(const StepRecord& r) {
  std::string line =
      fmt::format(R"({{"step":{},"learning_rate":"{:a}","loss":"{}","grad_norm":"{}","tokens":{},"samples":"{:016x}")",
                  r.step, r.learning_rate, exact(r.loss), exact(r.grad_norm), r.tokens, r.samples);
  if (r.bad_steps > 0) {
    line += fmt::format(R"(,"bad_steps":{},"sample_ids":[{}])", r.bad_steps, fmt::join(r.sample_ids, ","));
  }
  if (r.parameters) line += fmt::format(R"(,"parameters":"{:016x}")", *r.parameters);
  return line + "}\n";
}

std::string ledger_line(const EvaluationRecord& r) {
  return fmt::format("{{\"step\":{},\"validation_loss\":\"{}\"}}\n", r.step, exact(r.loss));
}

std::string ledger_line(const RollbackRecord& r) {
  return fmt::format("{{\"step\":{},\"rolled_back_from\":{},\"skipped_data\":[{},{}]}}\n", r.step, r.from,
                     r.first_skipped, r.last_skipped);
}

std::string problem_text(const StepRecord& r) {
  constexpr size_t most_shown = 8;
  const std::span shown(r.sample_ids.data(), std::min(r.sample_ids.size(), most_shown));
  const size_t more = r.sample_ids.size() - shown.size();
  return fmt::format("step {}: {} (loss {:.4f}, gradient norm {:.4f}); its update is left out. Samples {}{}", r.step,
                     r.problem, r.loss, r.grad_norm, fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string problem_text(const RollbackRecord& r) {
  return fmt::format("step {}: {}: back to the checkpoint of step {}{}", r.from, r.reason, r.step,
                     r.last_skipped > r.first_skipped ? fmt::format("; the data of {} steps from there on are left out",
                                                                    r.last_skipped - r.first_skipped)
                                                      : "");
}

}  // namespace llmtrain
