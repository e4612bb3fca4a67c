#pragma once
#include "layers/rope.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// Rope of a resolved config.
Rope make_rope(const ModelConfig& config);

/// Rope of its layers with the window.
Rope make_local_rope(const ModelConfig& config);

/// Factor by which the rope of a resolved config stretches wavelengths; 0: it does not.
double yarn_factor(const ModelConfig& config);
/// YaRN's factor on attention scores for a coefficient (mscale), as DeepSeek-V2 generalises it: 0.1 scale ln(factor)
/// + 1.
double yarn_attention_scale(double scale, double factor);

}  // namespace llmtrain
