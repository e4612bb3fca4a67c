#pragma once
// Losses of preference optimisation, as functions of the log-probabilities of a pair's documents. docs/preferences.md
// has the formulas and their papers.

#include <cstdint>

#include "objectives/dpo_config.hpp"

namespace llmtrain {

/// Facts of a document's completion.
struct DocumentScore {
  double logp = 0;       ///< log-probability under the policy, nats: the sum over its trained targets
  double reference = 0;  ///< the same under the reference model; 0 without one
  int64_t targets = 0;   ///< number of trained targets
};

/// A chosen and a rejected document, and what a loss may need about the step that they are in.
struct PreferencePair {
  DocumentScore chosen, rejected;
  double mean_chosen_targets = 1;  ///< mean number of the chosen documents' targets, over the pairs of the step
  /// Sorted losses (aot: Melnyk et al. 2024, arXiv:2406.05882) compare the value of equal rank in the step: for the
  /// difference of a pair the reference's, for the chosen document's log-ratio that of a rejected one.
  double counterpart = 0;
  double rejected_counterpart = 0;  ///< for the rejected document's log-ratio that of a chosen one
};

/// A loss in nats, and its derivatives with respect to the documents' log-probabilities.
struct PairLoss {
  double loss = 0, chosen = 0, rejected = 0;
};

PairLoss preference_loss(PreferenceLoss loss, const DpoConfig& config, const PreferencePair& pair);

/// True if the loss compares ranks in the whole step.
bool is_sorted(PreferenceLoss loss);
/// True if the loss has a term in the reference model's log-probabilities.
bool uses_reference(PreferenceLoss loss);

}  // namespace llmtrain
