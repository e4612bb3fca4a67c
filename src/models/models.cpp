#include "models/models.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace llmtrain {

const FamilyEntry& family_entry(ModelConfig::Family family) {
#define LLMTRAIN_FAMILY_ENTRY(name) family_##name(),
  static const std::array entries = {LLMTRAIN_FAMILIES(LLMTRAIN_FAMILY_ENTRY)};
#undef LLMTRAIN_FAMILY_ENTRY
  return entries[static_cast<size_t>(family)];
}

DecoderShape decoder_shape(const ModelConfig& config, int64_t tokens) {
  LLMTRAIN_CHECK(tokens > 0 && config.vocab_size >= tokens,
                 "the embedding has fewer rows than the tokenizer has tokens");
  DecoderShape shape;
  shape.config = config;
  shape.tokens = tokens;
  shape.final_norm = config.pre_norm;
  shape.projection_std = config.initializer_std;
  family_entry(config.family).shape(shape);
  return shape;
}

DecoderShape nominal_shape(ModelConfig model) {
  model.vocab_size = model.max_seq_len = model.d_model = model.d_ff = model.head_dim = 2;
  model.n_heads = model.n_kv_heads = 1;
  model.partial_rotary_factor = 1;
  model.rope_scaling = {};
  if (LatentConfig& latent = model.latent; latent.exist()) {
    latent.query_rank = std::min<int64_t>(latent.query_rank, 2);
    latent.rank = latent.rotated = 2;
    latent.plain = latent.value = 1;
    model.head_dim = latent.head_dim();
  }
  model.experts.d_ff = 2;
  model.experts.d_ff_shared = std::min<int64_t>(model.experts.d_ff_shared, 2);
  return decoder_shape(model, model.vocab_size);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t tokens, TrainedRule trained) {
  DecoderShape shape = decoder_shape(config, tokens);
  shape.trained = std::move(trained);
  return std::make_unique<Decoder>(std::move(shape));
}

void score(Model& model, Context& ctx, const Batch* batch, const TokenStatistics& statistics) {
  run_shared(ctx, batch, statistics, [&](const Batch* rows, const TokenStatistics& own) {
    model.forward(ctx, rows);
    model.score(ctx, rows, own);
  });
}

}  // namespace llmtrain
