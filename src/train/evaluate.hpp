#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "data/stream/data_stream.hpp"
#include "models/model.hpp"
#include "parallel/communicator.hpp"
#include "train/config/config.hpp"

namespace llmtrain {

/// What evaluate() works with: planned by its caller for data.max_rows() rows.
struct EvaluationBuffers {
  BatchBuffers& batch;
  TokenStatistics statistics;  ///< logp, fp32 [N]; others as far as they are wanted
};

/// Told each scored micro-batch of this rank.
using ScoredBatch = std::function<void(const HostBatch& batch)>;

struct EvaluationResult {
  int64_t tokens = 0;   ///< scored, of all ranks
  int64_t correct = 0;  ///< of them those that the model found most probable, where argmax is wanted
  double loss = 0;      ///< mean negative log-likelihood, nats per token
};

/// Asked by all ranks alike before each piece of work: whether to leave the rest. Collective.
using Interrupted = std::function<bool()>;

/// Of the data, as many as evaluation.batches leaves.
int64_t first_steps(const EvaluationConfig& config, const DataStream& data);
/// Evaluations of a run of `total` steps that come after the end of `step` or at its end; that at the start apart.
int64_t evaluations_from(const EvaluationConfig& config, int64_t step, int64_t total);
/// UserError (bad_content) where the first `steps` steps have no token that counts.
void require_trained_tokens(const DataStream& data, int64_t steps);

/// Scores the first `steps` steps of the data in canonical order, its micro-batches dealt to the ranks in turn. The sum
/// over tokens is exact, so that the result does not depend on the number of ranks. None if it was interrupted.
/// Collective.
std::optional<EvaluationResult> evaluate(Model& model, Context& ctx, const DataStream& data, int64_t steps,
                                         const EvaluationBuffers& buffers, Communicator& communicator,
                                         const Interrupted& interrupted, const ScoredBatch& scored = nullptr);

}  // namespace llmtrain
