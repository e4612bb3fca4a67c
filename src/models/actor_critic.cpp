#include "models/actor_critic.hpp"

#include "core/critic_names.hpp"
#include "core/error.hpp"

namespace llmtrain {

void SeparateActorCritic::plan(Arena& arena, const PassPlan& passes) {
  policy_.plan(arena, passes);
  critic_.plan(arena, passes);
}

void SeparateActorCritic::start(Stream& stream) {
  policy_.start(stream);
  critic_.start(stream);
}

void SeparateActorCritic::forward(Context& ctx, const Batch* batch) {
  policy_.forward(ctx, batch);
  critic_.forward(ctx, batch);
}

void SeparateActorCritic::score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) {
  policy_.score(ctx, batch, statistics);
  critic_.score(ctx, batch, {statistics.value, {}, {}, {}});
}

namespace {

void require_values(const Batch* batch, const TokenCotangents& cotangents) {
  LLMTRAIN_CHECK(batch == nullptr || !cotangents.value.empty(), "a critic is trained by cotangents of its values");
}

}  // namespace

void SeparateActorCritic::score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                                  const TokenCotangents& cotangents) {
  require_values(batch, cotangents);
  policy_.score_and_differentiate(ctx, batch, statistics, cotangents);
  policy_.backward(ctx, batch);
  critic_.score_and_differentiate(ctx, batch, {statistics.value, {}, {}, {}}, {cotangents.value, {}, {}});
}

void SeparateActorCritic::estimate_values(Context& ctx, const Batch* batch, const Tensor& values) {
  critic_.forward(ctx, batch);
  critic_.score(ctx, batch, {values, {}, {}, {}});
}

SharedActorCritic::SharedActorCritic(Decoder& policy) : ActorCritic(policy), units_(policy.units()) {
  const DecoderShape& shape = policy.shape();
  const std::string prefix(critic_prefix);
  UnitBuilder unit(units_, prefix + "final");
  head_.weight = unit.trained({prefix + shape.names.score + ".weight",
                               1,
                               shape.config.d_model,
                               true,
                               Initializer::normal(shape.config.initializer_std),
                               {}});
}

void SharedActorCritic::compute_values(Context& ctx, const Batch* batch, const Tensor& values) const {
  ctx.params.acquire(head_.weight.unit);
  if (batch != nullptr && !values.empty()) {
    head_.forward(ctx, policy_.hidden_states(batch->tokens), batch->loss_weights, values);
  }
  ctx.params.release(head_.weight.unit);
}

void SharedActorCritic::score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) {
  policy_.score(ctx, batch, statistics);
  compute_values(ctx, batch, statistics.value);
}

void SharedActorCritic::estimate_values(Context& ctx, const Batch* batch, const Tensor& values) {
  policy_.forward(ctx, batch);
  compute_values(ctx, batch, values);
}

/// The policy's head overwrites the hidden states by their gradient, to which that of the values is added.
void SharedActorCritic::score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                                const TokenCotangents& cotangents) {
  require_values(batch, cotangents);
  compute_values(ctx, batch, statistics.value);
  if (batch != nullptr) head_.backward_weight(ctx, policy_.hidden_states(batch->tokens), cotangents.value);
  ctx.params.reduce(head_.weight.unit);
  policy_.score_and_differentiate(ctx, batch, statistics, cotangents);
  ctx.params.acquire(head_.weight.unit);
  if (batch != nullptr && policy_.has_final_gradient()) {
    head_.add_input_gradient(ctx, policy_.hidden_states(batch->tokens), cotangents.value);
  }
  ctx.params.release(head_.weight.unit);
}

double SharedActorCritic::flops_per_token(int64_t sequence_length) const {
  const double passes = policy_.has_final_gradient() ? 3 : 2;
  return policy_.flops_per_token(sequence_length) + 2 * passes * static_cast<double>(policy_.shape().config.d_model);
}

}  // namespace llmtrain
