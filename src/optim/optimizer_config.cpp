#include "optim/optimizer_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/deck/deck.hpp"

namespace llmtrain {

namespace {

using Name = OptimizerConfig::Name;

/// A key, and the optimizers that use it.
struct UsedKey {
  const char* key;
  std::vector<Name> by;
};
/// A default that is not that of adamw.
struct OwnDefault {
  Name name;
  const char* key;
  double OptimizerConfig::*field;
  double value;
};

const std::vector<UsedKey>& used_keys() {
  static const std::vector<Name> adam{Name::adamw, Name::adamw_8bit, Name::paged_adamw, Name::paged_adamw_8bit,
                                      Name::muon};
  static const std::vector<Name> averaging{Name::adamw, Name::adamw_8bit, Name::paged_adamw, Name::paged_adamw_8bit,
                                           Name::lion,  Name::muon};
  static const std::vector<Name> with_beta1{Name::adamw, Name::adamw_8bit, Name::paged_adamw, Name::paged_adamw_8bit,
                                            Name::lion,  Name::adafactor,  Name::muon};
  static const std::vector<UsedKey> keys{{"optimizer.beta1", with_beta1},
                                         {"optimizer.beta2", averaging},
                                         {"optimizer.epsilon", adam},
                                         {"optimizer.momentum", {Name::sgd, Name::muon}},
                                         {"optimizer.nesterov", {Name::sgd, Name::muon}},
                                         {"optimizer.clip_threshold", {Name::adafactor}},
                                         {"optimizer.scale_parameter", {Name::adafactor}},
                                         {"optimizer.relative_step", {Name::adafactor}},
                                         {"optimizer.adjust_lr_fn", {Name::muon}}};
  return keys;
}

constexpr std::array own_defaults = {
    OwnDefault{Name::sgd, "optimizer.weight_decay", &OptimizerConfig::weight_decay, 0},
    OwnDefault{Name::lion, "optimizer.weight_decay", &OptimizerConfig::weight_decay, 0},
    OwnDefault{Name::adafactor, "optimizer.weight_decay", &OptimizerConfig::weight_decay, 0},
    OwnDefault{Name::adafactor, "optimizer.beta1", &OptimizerConfig::beta1, 0},
    OwnDefault{Name::muon, "optimizer.weight_decay", &OptimizerConfig::weight_decay, 0.1},
    OwnDefault{Name::muon, "optimizer.momentum", &OptimizerConfig::momentum, 0.95},
    OwnDefault{Name::lion, "optimizer.beta2", &OptimizerConfig::beta2, 0.99},
};

}  // namespace

void OptimizerConfig::visit(DeckKeys& keys) {
  keys.section("optimizer", "Set how gradients change the weights.", Change::applies, training_tasks);
  keys.key("name", name,
           {.doc = "adamw: in torch's order of operations. adamw_8bit: its moments have 8 bits. paged_adamw, "
                   "paged_adamw_8bit: the same with parallel.offload_optimizer = cpu unless that is given. sgd: "
                   "torch's, with momentum. lion: by the sign of an average "
                   "of gradients. muon: torch's, in matrices of hidden layers; adamw in the rest. docs/pretraining.md "
                   "compares them.",
            .change = Change::breaks});
  keys.key<Fp32Number>("beta1", beta1,
                       {.range = from_below(0, 1),
                        .doc = "Decay of the first moment; 0: adafactor keeps none.",
                        .automatic = "0.9; 0 for adafactor"});
  keys.key<Fp32Number>("beta2", beta2,
                       {.range = from_below(0, 1),
                        .doc = "Decay of the second moment; of lion's average.",
                        .automatic = "0.999; 0.99 for lion"});
  keys.key<Fp32Number>("epsilon", epsilon, {.range = above(0), .doc = "Added to the root of the second moment."});
  keys.key<Fp32Number>("weight_decay", weight_decay,
                       {.range = at_least(0),
                        .doc = "Decoupled weight decay, multiplied by the learning rate; for matrices and embeddings "
                               "only, never for biases and norms. For sgd it is added to the gradient, as in torch.",
                        .automatic = "0.01; 0 for sgd, lion and adafactor; 0.1 for muon"});
  keys.key<Fp32Number>("momentum", momentum,
                       {.range = from_below(0, 1),
                        .doc = "Decay of the sum of gradients that sgd follows; 0: it follows the gradient, and keeps "
                               "no state. Decay of the average of gradients that muon orthogonalises.",
                        .automatic = "0; 0.95 for muon",
                        .change = Change::breaks});
  keys.key("nesterov", nesterov,
           {.doc = "Momentum in Nesterov's form: the gradient is added to the sum once more.",
            .automatic = "false; true for muon"});
  keys.key<Fp32Number>("clip_threshold", clip_threshold,
                       {.range = above(0), .doc = "Largest root mean square of an update of adafactor, by tensor."});
  keys.key("scale_parameter", scale_parameter,
           {.doc = "Multiply the rate of adafactor by the root mean square of each tensor, at least 1e-3."});
  keys.key("relative_step", relative_step,
           {.doc = "Rate min(0.01, 1 / sqrt(step)) for adafactor instead of the schedule's."});
  keys.key("adjust_lr_fn", adjust_lr_fn,
           {.doc = "Factor of muon's rate for a matrix [A, B]. original: sqrt(max(1, A / B)). match_rms_adamw: 0.2 * "
                   "sqrt(max(A, B)), which suits rates of adamw."});
  keys.key<Fp32Number>("max_grad_norm", max_grad_norm,
                       {.range = at_least(0),
                        .doc = "Maximum global norm of the gradients, which are scaled down to it; 0 = no clipping."});
}

void OptimizerConfig::resolve(DeckLoader& deck) {
  for (const UsedKey& used : used_keys()) {
    if (std::ranges::find(used.by, name) == used.by.end()) {
      deck.unused(used.key, fmt::format("no effect with name = {}", name_of(name)));
    }
  }
  for (const OwnDefault& own : own_defaults) {
    if (own.name != name || deck.given(own.key)) continue;
    this->*own.field = own.value;
    deck.set(own.key, Origin::automatic, fmt::format("for {}", name_of(name)));
  }
  if (name == Name::muon && !deck.given("optimizer.nesterov")) {
    nesterov = true;
    deck.set("optimizer.nesterov", Origin::automatic, "for muon");
  }
  if (name == Name::sgd && momentum == 0) deck.unused("optimizer.nesterov", "no effect with momentum = 0");
}

}  // namespace llmtrain
