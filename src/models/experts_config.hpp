#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "kernels/routing.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

constexpr int64_t max_experts = 4096;               ///< of a layer
constexpr int64_t max_experts_of_layers = 1 << 17;  ///< of a layer, times the number of layers

/// Keys of [model] that describe mixtures of experts; without experts every MLP is dense.
struct ExpertsConfig {
  using Score = RoutingRule::Score;

  int64_t count = 0;             ///< n_experts of a layer; 0: no layer has experts
  int64_t per_token = 2;         ///< experts_per_token
  int64_t d_ff = 0;              ///< d_ff_expert, width of an expert
  int64_t d_ff_shared = 0;       ///< width of the expert that every token has beside the chosen ones; 0: none
  bool shared_gate = false;      ///< the shared expert's output is multiplied by a sigmoid of its input
  bool norm_topk = false;        ///< the weights of the chosen experts are divided by their sum
  Score score = Score::softmax;  ///< router_score
  double scale = 1;              ///< routed_scale, factor on the weights
  int64_t groups = 1;            ///< n_expert_groups
  int64_t groups_per_token = 1;
  std::vector<int64_t> dense_layers;  ///< layers without experts, ascending
  int64_t every = 1;                  ///< expert_every: of the others those layers i where (i + 1) % every = 0
  double limit = 0;                   ///< expert_limit of swiglu_oai; 0: none

  bool exist() const { return count > 0; }
  bool in_layer(int64_t layer) const {
    return exist() && (layer + 1) % every == 0 && !std::ranges::binary_search(dense_layers, layer);
  }
  /// Layers with experts, of the first n.
  int64_t layers(int64_t n) const {
    int64_t with = 0;
    for (int64_t layer = 0; layer < n; ++layer) with += in_layer(layer) ? 1 : 0;
    return with;
  }
  RoutingRule rule() const;
  void visit(DeckKeys& keys);
  void check(DeckLoader& deck, int64_t n_layers) const;
  void mark_unused(DeckLoader& deck) const;
  bool operator==(const ExpertsConfig&) const = default;
};

template <>
inline constexpr auto enum_names<ExpertsConfig::Score> = name_list("softmax", "sigmoid");

}  // namespace llmtrain
