#include "models/model_config.hpp"

#include <fmt/format.h>

#include "core/deck.hpp"

namespace llmtrain {

void ModelConfig::visit(DeckKeys& keys) {
  keys.section("model", "Shape and parts of the decoder; the family sets what is not given.");
  keys.key(
      "family", family,
      {.doc = "gpt2: layernorm, gelu_tanh, learned positions, biases, tied head, d_ff = 4 d_model. llama: rmsnorm, "
              "swiglu, rope, no biases, own head, d_ff = 8/3 d_model rounded up to a multiple of 64."});
  keys.key(
      "vocab_size", vocab_size,
      {.unit = "tokens",
       .range = between(1, 1 << 30),
       .doc =
           "Rows of the embedding. More than the tokenizer has adds padding that is never sampled; fewer is an error.",
       .automatic = "the tokenizer's"});
  keys.key(
      "d_model", d_model,
      {.unit = "elements", .range = between(1, 1 << 18), .doc = "Width of the residual stream.", .required = true});
  keys.key("n_layers", n_layers, {.range = between(1, 4096), .doc = "Number of blocks.", .required = true});
  keys.key("n_heads", n_heads, {.range = between(1, 4096), .doc = "Attention heads of a block.", .required = true});
  keys.key("n_kv_heads", n_kv_heads,
           {.range = between(1, 4096),
            .doc = "Heads of keys and values; fewer than n_heads share them (GQA), and must divide n_heads.",
            .automatic = "n_heads"});
  keys.key(
      "head_dim", head_dim,
      {.unit = "elements", .range = between(1, 4096), .doc = "Width of a head.", .automatic = "d_model / n_heads"});
  keys.key("d_ff", d_ff,
           {.unit = "elements",
            .range = between(1, 1 << 20),
            .doc = "Width inside the MLP; gated activations have two matrices of it.",
            .automatic = "the family's"});
  keys.key("max_seq_len", max_seq_len,
           {.unit = "tokens",
            .range = between(1, 1 << 24),
            .doc = "Longest sequence the model is made for: the rows of the table of learned positions.",
            .automatic = "batch.sequence_length"});
  keys.key("norm", norm, {.doc = "Normalisation.", .automatic = "the family's"});
  keys.key("norm_epsilon", norm_epsilon, {.range = above(0), .doc = "Added to the variance."});
  keys.key("activation", activation,
           {.doc = "Of the MLP; swiglu and geglu multiply it with a second projection.", .automatic = "the family's"});
  keys.key(
      "positions", positions,
      {.doc = "A learned table added to the embedding, or rotation of queries and keys.", .automatic = "the family's"});
  keys.key("rope_theta", rope_theta, {.range = above(0), .doc = "Base of the wavelengths of rope."});
  keys.key("bias", bias, {.doc = "Biases in linear layers and layernorms.", .automatic = "the family's"});
  keys.key("tie_embeddings", tie_embeddings,
           {.doc = "The head uses the matrix of the embedding.", .automatic = "the family's"});
  keys.key("dropout", dropout,
           {.range = from_below(0, 1), .doc = "Probability after the embedding and on each residual branch."});
  keys.key("attention_dropout", attention_dropout,
           {.range = from_below(0, 1), .doc = "Probability on the attention weights."});
  keys.key("pre_norm", pre_norm, {.doc = "Norms before attention and MLP; false: after the residual sum."});
  keys.key("initializer_std", initializer_std,
           {.range = at_least(0), .doc = "Standard deviation of initial matrices."});
  keys.key("sliding_window", sliding_window,
           {.unit = "tokens",
            .range = between(0, 1 << 24),
            .doc = "A token attends to itself and the window - 1 tokens before it; 0 = to all before it."});
}

namespace {

/// Sets the parts the deck leaves to the family.
class FamilyDefaults {
 public:
  explicit FamilyDefaults(DeckLoader& deck) : deck_(deck) {}

  template <class T>
  void set(std::string_view key, T& field, T value) {
    if (deck_.given(key)) return;
    field = value;
    deck_.set(key, Origin::family);
  }

 private:
  DeckLoader& deck_;
};

int64_t llama_width(int64_t d_model) { return (8 * d_model / 3 + 63) / 64 * 64; }

}  // namespace

void ModelConfig::resolve(DeckLoader& deck, int64_t sequence_length) {
  const bool llama = family == Family::llama;
  FamilyDefaults defaults(deck);
  defaults.set("model.norm", norm, llama ? Norm::rmsnorm : Norm::layernorm);
  defaults.set("model.norm_epsilon", norm_epsilon, 1e-5);
  defaults.set("model.activation", activation, llama ? Activation::swiglu : Activation::gelu_tanh);
  defaults.set("model.positions", positions, llama ? Positions::rope : Positions::learned);
  defaults.set("model.bias", bias, !llama);
  defaults.set("model.tie_embeddings", tie_embeddings, !llama);
  defaults.set("model.d_ff", d_ff, llama ? llama_width(d_model) : 4 * d_model);
  if (positions == Positions::rope) {
    defaults.set("model.rope_theta", rope_theta, 10000.0);
  } else {
    deck.unused("model.rope_theta", "no effect with positions = learned");
  }

  const auto derive = [&](std::string_view key, int64_t& field, int64_t value, std::string_view from) {
    if (deck.given(key)) return;
    field = value;
    deck.set(key, Origin::automatic, std::string(from));
  };
  derive("model.n_kv_heads", n_kv_heads, n_heads, "n_heads");
  derive("model.max_seq_len", max_seq_len, sequence_length, "batch.sequence_length");
  if (!deck.given("model.head_dim") && n_heads > 0) {
    deck.check(d_model % n_heads == 0, {"model.n_heads", "model.d_model"},
               fmt::format("{} heads do not divide d_model = {}: change one, or give head_dim", n_heads, d_model));
    derive("model.head_dim", head_dim, d_model / n_heads, "d_model / n_heads");
  }
  if (!deck.given("model.vocab_size")) deck.set("model.vocab_size", Origin::unused, "the tokenizer's");
  check(deck, sequence_length);
}

void ModelConfig::check(DeckLoader& deck, int64_t sequence_length) const {
  if (n_kv_heads > 0) {
    deck.check(n_heads % n_kv_heads == 0, {"model.n_kv_heads", "model.n_heads"},
               fmt::format("{} does not divide n_heads = {}", n_kv_heads, n_heads));
  }
  if (positions == Positions::rope) {
    const std::string_view blamed = deck.given("model.head_dim") ? "model.head_dim" : "model.n_heads";
    deck.check(head_dim % 2 == 0, {blamed, "model.n_heads", "model.d_model", "model.head_dim", "model.positions"},
               fmt::format("heads of {} elements are odd, and rope turns pairs of elements", head_dim));
  } else {
    deck.check(
        sequence_length <= max_seq_len,
        {"model.max_seq_len", "batch.sequence_length", "model.positions", "model.family"},
        fmt::format("{} learned positions do not reach over batch.sequence_length = {}", max_seq_len, sequence_length));
  }
}

}  // namespace llmtrain
