#include "models/mup.hpp"

#include <cmath>

#include "core/deck/deck.hpp"

namespace llmtrain {

void check_mup(DeckLoader& deck, const ModelConfig& model) {
  deck.check(
      model.mup_base_width == 0 || model.family == ModelConfig::Family::granite,
      {"model.mup_base_width", "model.family"},
      "only granite's config.json has factors on scores and logits: use family = granite, which is llama with them");
}

void set_mup_factors(DeckLoader& deck, ModelConfig& model) {
  if (model.mup_base_width == 0) return;
  if (!deck.given("model.logits_scaling")) {
    model.logits_scaling *= model.width_ratio();
    deck.set("model.logits_scaling", Origin::automatic, "the family's, times d_model / mup_base_width");
  }
  if (!deck.given("model.query_pre_attn_scalar")) {
    model.query_pre_attn_scalar = static_cast<double>(model.head_dim * model.head_dim);
    deck.set("model.query_pre_attn_scalar", Origin::automatic, "head_dim squared, with mup_base_width");
  }
}

void scale_hidden_matrices(std::vector<UnitSpec>& units, const ModelConfig& model) {
  const double ratio = model.width_ratio();
  for (UnitSpec& unit : units) {
    for (ParamSpec& param : unit.params) {
      if (!param.hidden) continue;
      param.lr_scale /= ratio;
      param.init.width /= std::sqrt(ratio);
    }
  }
}

}  // namespace llmtrain
