#pragma once
#include <cstdint>

#include "core/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [model]: shape and parts of a decoder. After load_config every value is the resolved one (what the deck leaves out
/// is set by the family or from other keys), except vocab_size, which is 0 until the tokenizer is known.
struct ModelConfig {
  enum class Family : uint8_t { gpt2, llama };
  enum class Norm : uint8_t { layernorm, rmsnorm };
  enum class Activation : uint8_t { gelu, gelu_tanh, relu, silu, swiglu, geglu };
  enum class Positions : uint8_t { learned, rope };

  Family family = Family::gpt2;
  int64_t vocab_size = 0;  ///< rows of the embedding; those beyond the tokenizer's are padding, never sampled
  int64_t d_model = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;   ///< divides n_heads
  int64_t head_dim = 0;     ///< elements; n_heads * head_dim need not be d_model
  int64_t d_ff = 0;         ///< width inside the MLP; gated activations have two matrices of it
  int64_t max_seq_len = 0;  ///< rows of the table of learned positions
  Norm norm = Norm::layernorm;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::gelu_tanh;
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  bool bias = true;
  bool tie_embeddings = true;
  double dropout = 0;            ///< after the embedding and on each residual branch
  double attention_dropout = 0;  ///< on attention probabilities
  bool pre_norm = true;
  double initializer_std = 0.02;
  int64_t sliding_window = 0;  ///< a token sees itself and the window - 1 tokens before it; 0 = all

  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  void visit(DeckKeys& keys);
  /// Sets what the deck leaves to the family or to other keys, then checks the keys against each other.
  void resolve(DeckLoader& deck, int64_t sequence_length);

 private:
  void check(DeckLoader& deck, int64_t sequence_length) const;
};

template <>
inline constexpr auto enum_names<ModelConfig::Family> = name_list("gpt2", "llama");
template <>
inline constexpr auto enum_names<ModelConfig::Norm> = name_list("layernorm", "rmsnorm");
template <>
inline constexpr auto enum_names<ModelConfig::Activation> = name_list("gelu", "gelu_tanh", "relu", "silu", "swiglu",
                                                                      "geglu");
template <>
inline constexpr auto enum_names<ModelConfig::Positions> = name_list("learned", "rope");

}  // namespace llmtrain
