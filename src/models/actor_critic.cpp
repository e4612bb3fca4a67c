#include "models/actor_critic.hpp"

#include "core/error.hpp"

namespace llmtrain {

void ActorCritic::plan(Arena& arena, const PassPlan& passes) {
  policy_.plan(arena, passes);
  critic_.plan(arena, passes);
}

void ActorCritic::start(Stream& stream) {
  policy_.start(stream);
  critic_.start(stream);
}

void ActorCritic::forward(Context& ctx, const Batch* batch) {
  policy_.forward(ctx, batch);
  critic_.forward(ctx, batch);
}

void ActorCritic::score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) {
  policy_.score(ctx, batch, statistics);
  critic_.score(ctx, batch, {statistics.value, {}, {}, {}});
}

void ActorCritic::score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                          const TokenCotangents& cotangents) {
  LLMTRAIN_CHECK(batch == nullptr || !cotangents.value.empty(), "a critic is trained by cotangents of its values");
  policy_.score_and_differentiate(ctx, batch, statistics, cotangents);
  policy_.backward(ctx, batch);
  critic_.score_and_differentiate(ctx, batch, {statistics.value, {}, {}, {}}, {cotangents.value, {}, {}});
}

}  // namespace llmtrain
