#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "evaluation/evaluation_config.hpp"
#include "kernels/logprob.hpp"
#include "metrics/records.hpp"
#include "models/model.hpp"
#include "objectives/objective.hpp"
#include "parallel/mesh.hpp"
#include "roles/reference.hpp"

namespace llmtrain {

/// Callback for each scored micro-batch of this rank.
using ScoredBatch = std::function<void(const HostBatch& batch)>;

struct EvaluationResult {
  int64_t tokens = 0;                    ///< what the objective counts, over all ranks
  int64_t correct = 0;                   ///< those that the model ranked first, if argmax is requested
  double loss = 0;                       ///< the objective's; for cross-entropy nats per token
  std::vector<NamedValue> metrics = {};  ///< the objective's others
  LabelScores labels = {};               ///< if the objective counts labels
};

/// Collective callback before each unit of work: returns true to stop.
using Interrupted = std::function<bool()>;

/// Buffers of evaluate(), planned by its caller for data.max_rows() rows.
struct EvaluationBuffers {
  BatchBuffers& batch;
  TokenStatistics statistics;      ///< logp, fp32 [N]; other statistics on request
  Tensor sums;                     ///< int64 [at least the objective's metrics, ExactSum::integer_count]
  Reference* reference = nullptr;  ///< null: the objective needs none
  Tensor documents = {};           ///< fp64 [segments], for objectives over documents
};

/// Number of steps to evaluate, limited by evaluation.batches.
int64_t first_steps(const EvaluationConfig& config, const DataStream& data);
/// Number of evaluations of a run of `total` steps after `step`, the final one included; the one at the start is not
/// counted.
int64_t evaluations_from(const EvaluationConfig& config, int64_t step, int64_t total);
/// Throws UserError(bad_content) if the first `steps` steps have no token that counts.
void require_trained_tokens(const DataStream& data, int64_t steps);

/// Scores the first `steps` steps of the data in canonical order, with micro-batches assigned to the data ranks round
/// robin. The sums of the objective are exact, so that the result does not depend on the number of ranks. Returns
/// nullopt if interrupted. Collective.
std::optional<EvaluationResult> evaluate(Model& model, Context& ctx, Objective& objective, const DataStream& data,
                                         int64_t steps, const EvaluationBuffers& buffers, const Mesh& mesh,
                                         const Interrupted& interrupted, const ScoredBatch& scored = nullptr);

/// The models of a job and memory for their passes.
struct ScoringPasses {
  Model& model;
  Context& ctx;  ///< role and training are set for the passes, and restored
  const EvaluationBuffers& buffers;
  DataPart part;
  const Mesh& mesh;
};

/// Scores the documents of a step, micro-batches assigned to the data ranks round robin, and shows all of them to the
/// objective. What it sees does not depend on the number of ranks. Collective.
void score_step(const ScoringPasses& passes, const DataStream& data, const StepPlan& step, Objective& objective);

}  // namespace llmtrain
