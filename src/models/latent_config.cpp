#include "models/latent_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

void LatentConfig::visit(DeckKeys& keys) {
  constexpr auto widths = between(0, 1 << 18);
  keys.key("kv_lora_rank", rank,
           {.unit = "elements",
            .range = widths,
            .doc = "Width of the latent vector of each token, of which keys and values are products; 0: no latent "
                   "attention. Every head has its own keys and values, and n_kv_heads is n_heads.",
            .automatic = "the family's"});
  keys.key("q_lora_rank", query_rank,
           {.unit = "elements",
            .range = widths,
            .doc = "Width of the latent vector of which queries are products; 0: they are products of the layer's "
                   "input.",
            .automatic = "the family's"});
  keys.key("qk_nope_head_dim", plain,
           {.unit = "elements",
            .range = widths,
            .doc = "Elements of a head's queries and keys that rope does not rotate, with latent attention.",
            .automatic = "the family's"});
  keys.key("qk_rope_head_dim", rotated,
           {.unit = "elements",
            .range = widths,
            .doc = "Elements of a head's queries and keys that rope rotates, an even number; all heads share those of "
                   "keys.",
            .automatic = "the family's"});
  keys.key("v_head_dim", value,
           {.unit = "elements",
            .range = widths,
            .doc = "Elements of a head's values, at most head_dim.",
            .automatic = "the family's"});
  keys.key("rope_interleave", interleaved,
           {.doc = "With latent attention: rope rotates neighbours; false: elements of the two halves.",
            .automatic = "the family's"});
}

void LatentConfig::set_defaults(DeckLoader& deck, const LatentConfig& of_family) {
  const auto set = [&](std::string_view key, auto& field, auto preset) {
    if (deck.given(key)) return;
    field = preset;
    deck.set(key, Origin::family);
  };
  set("model.kv_lora_rank", rank, of_family.rank);
  if (!exist()) return;
  set("model.q_lora_rank", query_rank, of_family.query_rank);
  set("model.qk_nope_head_dim", plain, of_family.plain);
  set("model.qk_rope_head_dim", rotated, of_family.rotated);
  set("model.v_head_dim", value, of_family.value);
  set("model.rope_interleave", interleaved, of_family.interleaved);
}

void LatentConfig::mark_unused(DeckLoader& deck) const {
  if (exist()) return deck.unused("model.partial_rotary_factor", "no effect: qk_rope_head_dim elements are rotated");
  for (const char* key : {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_interleave"}) {
    deck.unused(fmt::format("model.{}", key), "no effect with kv_lora_rank = 0");
  }
}

}  // namespace llmtrain
