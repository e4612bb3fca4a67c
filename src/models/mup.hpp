#pragma once
// Maximal update parametrization: hyperparameters that are best for a narrow model are best for a wide one (Yang et al.
// 2022, arXiv:2203.03466, table 8, for Adam). With m = d_model / model.mup_base_width:
//   matrices of hidden layers   learning rate / m, initial standard deviation / sqrt(m)
//   logits                      divided by m (model.logits_scaling)
//   attention                   scores divided by head_dim, not by its square root (model.query_pre_attn_scalar)
// Embeddings, norms and biases are as in the model of the base width, and all parameters decay as much in a step as
// there (ElementOptimizer::set_common).

#include <vector>

#include "core/params.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

class DeckLoader;

/// Refuses families whose config.json has no such factors.
void check_mup(DeckLoader& deck, const ModelConfig& model);

/// Sets the factors that a model with new weights has besides its parameters, unless the deck gives them.
void set_mup_factors(DeckLoader& deck, ModelConfig& model);

/// Scales learning rates and initial values of hidden matrices.
void scale_hidden_matrices(std::vector<UnitSpec>& units, const ModelConfig& model);

}  // namespace llmtrain
