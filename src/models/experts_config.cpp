#include "models/experts_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/deck/layers_codec.hpp"

namespace llmtrain {

RoutingRule ExpertsConfig::rule() const {
  RoutingRule rule;
  rule.experts = count;
  rule.per_token = per_token;
  rule.score = score;
  rule.normalized = norm_topk;
  rule.scale = static_cast<float>(scale);
  rule.groups = groups;
  rule.groups_per_token = groups_per_token;
  rule.group_score = score == Score::sigmoid ? RoutingRule::GroupScore::best_two : RoutingRule::GroupScore::best;
  return rule;
}

void ExpertsConfig::visit(DeckKeys& keys) {
  keys.key("n_experts", count,
           {.range = between(0, max_experts),
            .doc = "Experts of a layer, of which every token uses experts_per_token in place of the MLP; 0: no layer "
                   "has experts.",
            .automatic = "the family's"});
  keys.key("experts_per_token", per_token,
           {.range = between(1, 1024),
            .doc = "Experts that a token uses: those with the highest scores, of equal ones the first. No token is "
                   "dropped.",
            .automatic = "the family's"});
  keys.key("d_ff_expert", d_ff,
           {.unit = "elements", .range = between(1, 1 << 20), .doc = "Width of an expert.", .automatic = "d_ff"});
  keys.key("d_ff_shared", d_ff_shared,
           {.unit = "elements",
            .range = between(0, 1 << 20),
            .doc = "Width of an expert that every token uses besides; 0: there is none.",
            .automatic = "the family's"});
  keys.key(
      "shared_gate", shared_gate,
      {.doc = "The output of the shared expert is multiplied by a sigmoid of its input.", .automatic = "the family's"});
  keys.key("norm_topk", norm_topk,
           {.doc = "The weights of a token's experts are divided by their sum.", .automatic = "the family's"});
  keys.key("router_score", score,
           {.doc = "Scores of experts: softmax or sigmoid of the router's logits.", .automatic = "the family's"});
  keys.key<Fp32Number>(
      "routed_scale", scale,
      {.range = above(0), .doc = "Factor on the weights of a token's experts.", .automatic = "the family's"});
  keys.key<Fp32Number>("expert_limit", limit,
                       {.range = at_least(0),
                        .doc = "With activation = swiglu_oai: the largest input of an expert's gate, and the largest "
                               "magnitude of the other projection; 0: no limit.",
                        .automatic = "the family's"});
  keys.key("n_expert_groups", groups,
           {.range = between(1, max_expert_groups),
            .doc = "Groups of consecutive experts, of which a token uses groups_per_token.",
            .automatic = "the family's, or 1 with n_experts"});
  keys.key("groups_per_token", groups_per_token,
           {.range = between(1, max_expert_groups),
            .doc = "Groups of experts that a token uses.",
            .automatic = "the family's, or 1 with n_experts"});
  keys.key<LayersCodec>(
      "dense_layers", dense_layers,
      {.doc = "Layers without experts, counted from 0, as in 0, 2, 8-11.", .automatic = "the family's"});
  keys.key("expert_every", every,
           {.range = between(1, 4096),
            .doc = "Distance of layers with experts: those i, counted from 0, where i + 1 is a multiple of it."});
}

void ExpertsConfig::mark_unused(DeckLoader& deck) const {
  if (exist()) {
    if (d_ff_shared == 0) deck.unused("model.shared_gate", "no effect with d_ff_shared = 0");
    return;
  }
  for (const char* key :
       {"experts_per_token", "d_ff_expert", "d_ff_shared", "shared_gate", "norm_topk", "router_score", "routed_scale",
        "expert_limit", "n_expert_groups", "groups_per_token", "dense_layers", "expert_every"}) {
    deck.unused(fmt::format("model.{}", key), "no effect with n_experts = 0");
  }
}

void ExpertsConfig::check(DeckLoader& deck, int64_t n_layers) const {
  if (!exist()) return;
  deck.check(count * n_layers <= max_experts_of_layers, {"model.n_experts", "model.n_layers"},
             fmt::format("{} experts in {} layers are more than {} in all", count, n_layers, max_experts_of_layers));
  deck.check(count % groups == 0, {"model.n_expert_groups", "model.n_experts"},
             fmt::format("{} groups do not divide {} experts", groups, count));
  deck.check(groups_per_token <= groups, {"model.groups_per_token", "model.n_expert_groups"},
             fmt::format("{} is more than the {} groups", groups_per_token, groups));
  const int64_t choices = count / groups * std::min(groups, groups_per_token);
  deck.check_together(per_token <= choices, {"model.experts_per_token", "model.n_experts", "model.groups_per_token"},
                      fmt::format("a token uses {} experts, and has {} to choose from", per_token, choices));
  deck.check(
      dense_layers.empty() || dense_layers.back() < n_layers, {"model.dense_layers", "model.n_layers"},
      fmt::format("names layer {} of {}, counted from 0", dense_layers.empty() ? 0 : dense_layers.back(), n_layers));
  deck.check_together(layers(n_layers) > 0, {"model.dense_layers", "model.expert_every", "model.n_layers"},
                      fmt::format("none of the {} layers has experts", n_layers));
}

}  // namespace llmtrain
