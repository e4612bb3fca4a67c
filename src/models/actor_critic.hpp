#pragma once
// A policy and a critic that are trained together, in one list of units, with one store, optimizer and gradient norm.

#include "models/decoder.hpp"

namespace llmtrain {

/// The policy has the head of a language model. The critic's value at a row is that of the state before the row's
/// target. Generation runs the policy alone. The critic's units follow the policy's, which must outlive this.
class ActorCritic : public Model {
 public:
  explicit ActorCritic(Decoder& policy) : policy_(policy) {}

  /// Runs a forward pass, and computes the critic's values, fp32 [N]; 0 in rows whose loss weight is 0.
  virtual void estimate_values(Context& ctx, const Batch* batch, const Tensor& values) = 0;

  void plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const override {
    policy_.plan_cache(arena, cache, compute, sequences, positions);
  }
  bool can_cache() const override { return policy_.can_cache(); }
  bool can_record() const override { return policy_.can_record(); }
  void logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) override {
    policy_.logits(ctx, batch, rows, out);
  }
  std::vector<ParamRef> router_biases() const override { return policy_.router_biases(); }

 protected:
  Decoder& policy_;
};

/// A critic that is a decoder of its own, with a head of one output.
class SeparateActorCritic : public ActorCritic {
 public:
  /// The critic must outlive this.
  SeparateActorCritic(Decoder& policy, Decoder& critic) : ActorCritic(policy), critic_(critic) {}

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
  void estimate_values(Context& ctx, const Batch* batch, const Tensor& values) override;
  double flops_per_token(int64_t sequence_length) const override {
    return policy_.flops_per_token(sequence_length) + critic_.flops_per_token(sequence_length);
  }

 private:
  Decoder& critic_;
};

/// A critic that is a second head, of one output, on the policy's last hidden states: both losses train the trunk.
class SharedActorCritic : public ActorCritic {
 public:
  explicit SharedActorCritic(Decoder& policy);

  std::vector<UnitSpec> units() const override { return units_; }
  void plan(Arena& arena, const PassPlan& passes) override { policy_.plan(arena, passes); }
  void start(Stream& stream) override { policy_.start(stream); }
  void forward(Context& ctx, const Batch* batch) override { policy_.forward(ctx, batch); }
  /// Fills statistics.value if it is not empty.
  void score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) override;
  void score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                               const TokenCotangents& cotangents) override;
  void backward(Context& ctx, const Batch* batch) override { policy_.backward(ctx, batch); }
  void estimate_values(Context& ctx, const Batch* batch, const Tensor& values) override;
  double flops_per_token(int64_t sequence_length) const override;

 private:
  void compute_values(Context& ctx, const Batch* batch, const Tensor& values) const;

  std::vector<UnitSpec> units_;
  ScalarHead head_;
};

}  // namespace llmtrain
