#include "models/latent_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "models/models.hpp"

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

void LatentConfig::check(DeckLoader& deck, const ModelConfig& m) const {
  const bool of_family = family_entry(m.family).hugging_face.latent;
  deck.check(exist() == of_family, {"model.kv_lora_rank", "model.family"},
             of_family ? fmt::format("{} has latent attention: give its width, as in 512", name_of(m.family))
                       : fmt::format("{} has no latent attention: use deepseek_v2 or deepseek_v3", name_of(m.family)));
  if (!exist() || !of_family) return;
  for (const auto& [key, width] :
       {std::pair("model.qk_nope_head_dim", plain), {"model.qk_rope_head_dim", rotated}, {"model.v_head_dim", value}}) {
    deck.check(width > 0, {key}, "must be above 0 with latent attention");
  }
  deck.check(
      m.head_dim == head_dim(), {"model.head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
      fmt::format("with latent attention it is qk_nope_head_dim + qk_rope_head_dim = {}: remove the key", head_dim()));
  deck.check(m.n_kv_heads == m.n_heads, {"model.n_kv_heads", "model.n_heads"},
             fmt::format("with latent attention it is n_heads = {}: remove the key", m.n_heads));
  deck.check(value <= head_dim(), {"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
             fmt::format("values of {} elements are wider than queries of {}: make them narrower", value, head_dim()));
  deck.check(m.positions == ModelConfig::Positions::rope, {"model.positions", "model.kv_lora_rank"},
             "latent attention has rope");
  deck.check(!m.qk_norm, {"model.qk_norm", "model.kv_lora_rank"}, "latent attention has norms of its own");
  deck.check(!m.qkv_bias && !m.attention_output_bias,
             {m.qkv_bias ? "model.qkv_bias" : "model.attention_output_bias", "model.bias", "model.kv_lora_rank"},
             "latent attention has no biases");
}

}  // namespace llmtrain
