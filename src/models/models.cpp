#include "models/models.hpp"

namespace llmtrain {

DecoderShape decoder_shape(const ModelConfig& config, int64_t tokens) {
  LLMTRAIN_CHECK(tokens > 0 && config.vocab_size >= tokens,
                 "the embedding has fewer rows than the tokenizer has tokens");
  DecoderShape shape;
  shape.config = config;
  shape.tokens = tokens;
  shape.qkv_bias = shape.output_bias = shape.mlp_bias = config.bias;
  shape.final_norm = config.pre_norm;
  shape.projection_std = config.initializer_std;
  switch (config.family) {
    case ModelConfig::Family::gpt2:
      shape_gpt2(shape);
      break;
    case ModelConfig::Family::llama:
      shape_llama(shape);
      break;
  }
  return shape;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t tokens) {
  return std::make_unique<Decoder>(decoder_shape(config, tokens));
}

}  // namespace llmtrain
