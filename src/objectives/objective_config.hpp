#pragma once

namespace llmtrain {

class DeckKeys;

/// [objective]: terms beside the cross-entropy of tokens. With w a token's weight, p its distribution over V tokens and
/// lse the logarithm of the sum of the exponentials of its logits, the loss is the weighted mean of
///   -(1 - label_smoothing) log p(target) - label_smoothing / V sum log p + z_loss lse^2 - entropy_bonus H(p).
struct ObjectiveConfig {
  double z_loss = 0;
  double label_smoothing = 0;
  double entropy_bonus = 0;
  double router_aux = 0;        ///< of models with experts: coefficient of the balance of their load
  double router_z_loss = 0;     ///< the same, of the squared logarithm of the denominator of a router's softmax
  double router_bias_rate = 0;  ///< change of the biases by which routers choose, after a step

  bool has_terms() const { return z_loss != 0 || label_smoothing != 0 || entropy_bonus != 0; }
  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
