#pragma once
#include <span>
#include <vector>

#include "kernels/logprob.hpp"
#include "layers/context.hpp"
#include "layers/memory_config.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// Limits for which a model's activations are planned.
struct PassPlan {
  DType compute;
  int64_t max_rows;  ///< tokens of a batch
  bool training;     ///< false: all blocks share one set of activations
  Recompute recompute = Recompute::none;
  int64_t longest = 0;         ///< tokens of a document that fills its sample; 0: unknown
  int64_t context = 1;         ///< ranks that share the rows of a batch, of which each has at most max_rows
  int64_t context_blocks = 1;  ///< blocks of the rows that are shared
};

/// A language model: parameters by unit, and the sequence of its passes over one batch. With sharded weights every rank
/// must run the same passes; a null batch is an idle pass, which only takes part in gathers and reductions.
///
///   forward(batch); score(...)                         evaluation
///   forward(batch); score_and_differentiate(...); backward(batch)   training
class Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<UnitSpec> units() const = 0;
  /// Registers activations in the arena.
  virtual void plan(Arena& arena, const PassPlan& passes) = 0;
  /// Bound on the rows of a pass of generation, the same on every mesh: of one block of rows; 0 before plan().
  virtual int64_t planned_rows() const { return 0; }
  /// Fills constant tables; called once the arena is committed.
  virtual void start(Stream& stream) = 0;

  virtual void forward(Context& ctx, const Batch* batch) = 0;
  /// Computes token statistics of the last forward pass.
  virtual void score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) = 0;
  /// Computes the same, and the gradient of the head for given cotangents; backward() continues from it.
  virtual void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                       const TokenCotangents& cotangents) = 0;
  virtual void backward(Context& ctx, const Batch* batch) = 0;
  /// Registers a KV cache for `sequences` sequences of at most `positions` tokens.
  virtual void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const = 0;
  /// False if earlier keys change as the text grows (rope whose frequencies depend on the length).
  virtual bool can_cache() const = 0;
  /// True if a GPU may record passes as graphs: the host takes no part in them.
  virtual bool can_record() const { return true; }
  /// Computes logits fp32 [R, V] of R rows of the last forward pass, in ascending order, as one product. Rows that are
  /// not consecutive are moved together, which invalidates the hidden states of the pass.
  virtual void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) = 0;

  /// Biases by which routers choose experts, of each layer with experts; none: routers have none.
  virtual std::vector<ParamRef> router_biases() const { return {}; }
  /// FLOPs of one token's forward and backward pass: 6 N for matrix products, and attention's share at sequence length
  /// T by the convention of Chowdhery et al. 2022 (PaLM), 12 L H D T. Frozen matrices have no gradient (4 N), nor do
  /// inputs below the lowest trained parameter (2 N). Recomputation is not counted.
  virtual double flops_per_token(int64_t sequence_length) const = 0;
};

/// Runs the forward pass of a batch and computes the statistics of all its rows, which ranks may share.
void score(Model& model, Context& ctx, const Batch* batch, const TokenStatistics& statistics);

}  // namespace llmtrain
