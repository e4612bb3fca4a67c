#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Losses over pairs of a chosen and a rejected document, or over documents with a label (kto). Names as in TRL.
enum class PreferenceLoss : uint8_t {
  sigmoid,
  hinge,
  ipo,
  ipo_summed,
  robust,
  exo_pair,
  nca_pair,
  bco_pair,
  sppo_hard,
  aot,
  aot_unpaired,
  apo_zero,
  apo_down,
  discopop,
  sigmoid_norm,
  sft,
  orpo,
  simpo,
  cpo,
  kto,
};
template <>
inline constexpr auto enum_names<PreferenceLoss> = name_list("sigmoid", "hinge", "ipo", "ipo_summed", "robust",
                                                             "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot",
                                                             "aot_unpaired", "apo_zero", "apo_down", "discopop",
                                                             "sigmoid_norm", "sft", "orpo", "simpo", "cpo", "kto");

/// [dpo]
struct DpoConfig {
  enum class Divergence : uint8_t { reverse_kl, forward_kl, js, alpha };

  std::vector<std::string> loss = {"sigmoid"};
  std::vector<double> loss_weights;  ///< empty: 1 each
  double beta = 0.1;
  double label_smoothing = 0;
  Divergence f_divergence = Divergence::reverse_kl;
  double f_alpha = 0.5;
  double simpo_gamma = 0.5;
  double desirable_weight = 1, undesirable_weight = 1;
  std::string reference = "auto";  ///< or none, or a model folder
  bool cache_reference = true;
  int64_t sync_every = 0;
  double sync_alpha = 0.6;
  int64_t max_prompt_length = 0;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);

  /// The losses; the deck is resolved.
  std::vector<PreferenceLoss> losses() const;
  /// True if a loss compares the policy with a reference model.
  bool uses_reference() const;
  bool is_kto() const { return losses() == std::vector{PreferenceLoss::kto}; }
};

template <>
inline constexpr auto enum_names<DpoConfig::Divergence> = name_list("reverse_kl", "forward_kl", "js", "alpha");

}  // namespace llmtrain
