#pragma once
#include "models/decoder.hpp"

namespace llmtrain {

/// A policy and a critic that are trained together: two decoders in one list of units, with one store, optimizer and
/// gradient norm. The policy has the head of a language model; the critic has a head of one output, whose value at a
/// row is that of the state before the row's target. Generation runs the policy alone.
class ActorCritic : public Model {
 public:
  /// The critic's units follow the policy's. Both must outlive this.
  ActorCritic(Decoder& policy, Decoder& critic) : policy_(policy), critic_(critic) {}

  std::vector<UnitSpec> units() const override { return critic_.units(); }
  void plan(Arena& arena, const PassPlan& passes) override;
  void start(Stream& stream) override;
  void forward(Context& ctx, const Batch* batch) override;
  /// Fills statistics.value if it is not empty.
  void score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) override;
  /// Runs the policy's backward pass too, so that each model uses its units in the order of its own passes.
  void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                               const TokenCotangents& cotangents) override;
  void backward(Context& ctx, const Batch* batch) override { critic_.backward(ctx, batch); }
  void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const override {
    policy_.plan_cache(arena, cache, compute, sequences, positions);
  }
  bool can_cache() const override { return policy_.can_cache(); }
  void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) override {
    policy_.logits(ctx, batch, rows, out);
  }
  double flops_per_token(int64_t sequence_length) const override {
    return policy_.flops_per_token(sequence_length) + critic_.flops_per_token(sequence_length);
  }

 private:
  Decoder& policy_;
  Decoder& critic_;
};

}  // namespace llmtrain
