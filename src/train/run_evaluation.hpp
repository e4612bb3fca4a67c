#pragma once
// Work between the steps of a run: evaluations and samples. A request to stop interrupts both; they stay pending and
// run when the run resumes.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/run_progress.hpp"

namespace llmtrain {

/// Collective callback before each unit of work: returns the reason to stop, or 0.
using StopRequested = std::function<int64_t()>;

class RunEvaluation {
 public:
  RunEvaluation(const RunContext& run, const EvaluationConfig& config, uint64_t seed, std::string directory)
      : run_(run), config_(config), seed_(seed), directory_(std::move(directory)) {}

  /// Returns the reason to stop, if it was interrupted, else 0. Collective.
  int64_t run(int64_t completed, const StopRequested& stop_requested);

 private:
  RunContext run_;
  /// Scores of evaluation.tasks and evaluation.metrics, and what is wrong if they are not finite. Returns nullopt if
  /// interrupted. Collective.
  std::optional<std::vector<NamedValue>> scores(std::string& problem, const Interrupted& interrupted);

  EvaluationConfig config_;
  uint64_t seed_;
  std::string directory_;  ///< of the run
};

class RunSamples {
 public:
  /// `stop_ids`: tokens that end a sample.
  RunSamples(const RunContext& run, const LogConfig& config, uint64_t seed, const std::vector<int64_t>& stop_ids)
      : run_(run), config_(config), seed_(seed), stop_ids_(stop_ids.begin(), stop_ids.end()) {}

  /// Writes a sample for each prompt. Returns the reason to stop, if it was interrupted, else 0. Collective.
  int64_t run(int64_t completed, const StopRequested& stop_requested);

 private:
  GenerationRequest request(int64_t completed) const;

  RunContext run_;
  LogConfig config_;
  uint64_t seed_;
  std::vector<int32_t> stop_ids_;
};

}  // namespace llmtrain
