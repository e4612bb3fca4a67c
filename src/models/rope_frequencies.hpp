#pragma once
#include "layers/rope.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// Rope of a resolved config.
Rope make_rope(const ModelConfig& config);

}  // namespace llmtrain
