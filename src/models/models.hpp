#pragma once
// The list of model families. A new one is a file that fills a DecoderShape, and a line in models.cpp.

#include <memory>

#include "models/decoder.hpp"

namespace llmtrain {

/// Shape of a resolved config (vocab_size known); `tokens` is the tokenizer's vocabulary.
DecoderShape decoder_shape(const ModelConfig& config, int64_t tokens);

std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t tokens);

// One function per family, each in the file of its name.
void shape_gpt2(DecoderShape& shape);
void shape_llama(DecoderShape& shape);

}  // namespace llmtrain
