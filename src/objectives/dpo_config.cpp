#include "objectives/dpo_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {

namespace {

std::optional<PreferenceLoss> find_loss(std::string_view name) {
  const auto& names = enum_names<PreferenceLoss>;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<PreferenceLoss>(found - names.begin());
}

}  // namespace

void DpoConfig::visit(DeckKeys& keys) {
  keys.section("dpo", "Learn from preferences (run.task = dpo).", Change::breaks, {Task::dpo}, true);
  keys.key("loss", loss,
           {.doc = "sigmoid: DPO. Others: hinge, ipo, ipo_summed, robust, exo_pair, nca_pair, bco_pair, sppo_hard, "
                   "apo_zero, apo_down, discopop, sigmoid_norm, aot, aot_unpaired, sft, orpo, simpo, cpo; kto for rows "
                   "with a label; or a list, whose weighted sum "
                   "is the loss. docs/preferences.md has the formulas."});
  keys.key("loss_weights", loss_weights, {.doc = "A weight for each loss of the list; empty: 1 each."});
  keys.key<Fp32Number>(
      "beta", beta,
      {.range = above(0), .doc = "Strength with which the policy is kept near the reference: larger is nearer."});
  keys.key<Fp32Number>(
      "label_smoothing", label_smoothing,
      {.range = from_below(0, 0.5),
       .doc = "Probability that a preference is wrong; used by sigmoid, robust, exo_pair, aot, simpo, cpo."});
  keys.key("f_divergence", f_divergence,
           {.doc = "Divergence from the reference, in the losses of the difference of a pair: sigmoid, hinge, ipo, "
                   "ipo_summed, robust, exo_pair, discopop, sigmoid_norm."});
  keys.key<Fp32Number>("f_alpha", f_alpha, {.doc = "Alpha of f_divergence = alpha."});
  keys.key<Fp32Number>("desirable_weight", desirable_weight,
                       {.range = at_least(0), .doc = "Weight of desirable documents; kto."});
  keys.key<Fp32Number>("undesirable_weight", undesirable_weight,
                       {.range = at_least(0), .doc = "Weight of undesirable documents; kto."});
  keys.key<Fp32Number>("simpo_gamma", simpo_gamma, {.range = at_least(0), .doc = "Target margin of simpo."});
  keys.key("reference", reference,
           {.doc = "auto: the model as it was before training, which is the policy without its adapters where "
                   "run.finetuning = lora. none: log-probabilities of 0. Or the folder of a model."});
  keys.key("cache_reference", cache_reference,
           {.doc = "Compute the reference's log-probabilities once, before training, and keep them in data.cache; "
                   "false: with every step, by a model that stays in memory.",
            .change = Change::nothing});
  keys.key("sync_every", sync_every,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Number of steps after which the reference moves towards the policy (TR-DPO); 0 = never. The "
                   "reference then runs with every step, and its fp32 weights are part of the optimizer's state."});
  keys.key<Fp32Number>("sync_alpha", sync_alpha,
                       {.range = between(0, 1),
                        .doc = "The reference becomes sync_alpha times the policy and 1 - sync_alpha times itself."});
  keys.key("max_prompt_length", max_prompt_length,
           {.unit = "tokens", .range = at_least(0), .doc = "Keep the last tokens of longer prompts; 0 = all."});
}

void DpoConfig::resolve(DeckLoader& deck) {
  if (!deck.sound({"dpo.loss", "dpo.loss_weights"})) return;
  for (const std::string& name : loss) {
    if (!find_loss(name)) {
      deck.fail("dpo.loss",
                fmt::format("{} is not a loss; the losses are {}{}", printable(name),
                            joined(enum_names<PreferenceLoss>), did_you_mean(name, enum_names<PreferenceLoss>)));
      return;
    }
    if (std::ranges::count(loss, name) > 1) deck.fail("dpo.loss", fmt::format("{} is listed twice", name));
  }
  if (loss.empty()) deck.fail("dpo.loss", "name at least one loss, e.g. sigmoid");
  deck.check(loss_weights.empty() || loss_weights.size() == loss.size(), {"dpo.loss_weights", "dpo.loss"},
             fmt::format("{} weights for {} losses: give one for each", loss_weights.size(), loss.size()));
  const bool kto = std::ranges::find(loss, "kto") != loss.end();
  deck.check(!kto || loss.size() == 1, {"dpo.loss"},
             "kto is a loss over documents with a label: it cannot be added to losses over pairs");
  if (kto && reference != "none") {
    deck.check(!cache_reference || !deck.given("dpo.cache_reference"), {"dpo.cache_reference", "dpo.loss"},
               "kto compares prompts with completions of others, other ones in every step: the reference must run");
    cache_reference = false;
    deck.set("dpo.cache_reference", Origin::automatic, "for kto");
  }
  if (sync_every > 0) {
    deck.check(
        reference == "auto" && uses_reference(), {"dpo.sync_every", "dpo.reference", "dpo.loss"},
        "only a reference that begins as the policy can follow it: needs dpo.reference = auto, and a loss with a "
        "reference");
    deck.check(!cache_reference || !deck.given("dpo.cache_reference"), {"dpo.cache_reference", "dpo.sync_every"},
               "a reference that changes must run with every step");
    cache_reference = false;
    deck.set("dpo.cache_reference", Origin::automatic, "for dpo.sync_every");
  }
  const bool exo = std::ranges::find(loss, "exo_pair") != loss.end();
  deck.check(!exo || label_smoothing > 0, {"dpo.label_smoothing", "dpo.loss"},
             "exo_pair needs label_smoothing above 0, e.g. 1e-3: its target has no zero probability");
}

std::vector<PreferenceLoss> DpoConfig::losses() const {
  std::vector<PreferenceLoss> all;
  for (const std::string& name : loss) all.push_back(find_loss(name).value());
  return all;
}

}  // namespace llmtrain
