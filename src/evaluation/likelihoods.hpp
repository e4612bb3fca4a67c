#pragma once
// Log-probabilities of continuations under a model, over all ranks.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "evaluation/evaluate.hpp"
#include "models/model.hpp"
#include "parallel/communicator.hpp"
#include "scores/continuation.hpp"

namespace llmtrain {

/// A scored token.
struct TokenLikelihood {
  float logp = 0;  ///< nats
  bool greedy = false;
};

/// Buffers of score_continuations().
struct LikelihoodBuffers {
  BatchBuffers& batch;  ///< of at least `rows` rows and segments_for(rows) segments
  Tensor logp;          ///< fp32 [rows]
  Tensor argmax;        ///< int32 [rows]

  int64_t rows() const { return logp.dim(0); }
};

/// Segments of a batch of this many rows of continuations, of which one may have a single row.
constexpr int64_t segments_for(int64_t rows) { return rows + 1; }

/// Returns the tokens of all continuations, one after the other, on every rank. Continuations share batches of at most
/// buffers.rows() rows, which the ranks take in turn. The bits of a token are a function of its continuation alone:
/// products are batch-invariant, and attention does not cross segments. Returns nullopt if interrupted. Collective.
std::optional<std::vector<TokenLikelihood>> score_continuations(Model& model, Context ctx,
                                                                std::span<const TokenContinuation> continuations,
                                                                const LikelihoodBuffers& buffers,
                                                                Communicator& communicator,
                                                                const Interrupted& interrupted);

}  // namespace llmtrain
