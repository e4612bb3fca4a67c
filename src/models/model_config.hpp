#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/label_rules.hpp"
#include "kernels/activation.hpp"
#include "kernels/norm.hpp"
#include "models/experts_config.hpp"
#include "models/families.hpp"
#include "models/latent_config.hpp"
#include "models/rope/rope_scaling.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [model]: shape and components of a decoder. After load_config every value is resolved (the family or other keys set
/// what the deck omits), except vocab_size, which is 0 until the tokenizer is known.
struct ModelConfig {
#define LLMTRAIN_FAMILY_NAME(name) name,
  enum class Family : uint8_t { LLMTRAIN_FAMILIES(LLMTRAIN_FAMILY_NAME) };
#undef LLMTRAIN_FAMILY_NAME
  using Norm = NormKind;
  using Activation = llmtrain::Activation;
  enum class Positions : uint8_t { learned, rope };
  enum class Head : uint8_t {
    language,     ///< logits of the next token
    score,        ///< numbers at the last token of a document: a reward, or the logits of labels
    token_score,  ///< logits of labels at each token
  };

  Family family = Family::gpt2;
  std::string path;        ///< Hugging Face folder of the weights; empty: new weights
  int64_t vocab_size = 0;  ///< rows of the embedding; those beyond the tokenizer's are padding, never sampled
  int64_t d_model = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;   ///< divides n_heads
  int64_t head_dim = 0;     ///< elements; n_heads * head_dim need not be d_model
  int64_t d_ff = 0;         ///< width of the MLP; gated activations have two matrices of it
  int64_t max_seq_len = 0;  ///< tokens; rows of the table of learned positions, base length of rope scaling
  Norm norm = Norm::layernorm;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::gelu_tanh;
  Positions positions = Positions::learned;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double rope_local_theta = 0;  ///< base of rope, without scaling, in layers with the window; 0: as in the others
  std::vector<int64_t> no_rope_layers;  ///< layers without positions, ascending
  double partial_rotary_factor = 1;     ///< fraction of a head's elements, the first ones, that rope rotates
  bool bias = true;                     ///< default for layernorms and linear layers
  bool qkv_bias = true;
  bool attention_output_bias = true;
  bool mlp_bias = true;
  bool tie_embeddings = true;
  double dropout = 0;            ///< probability, after the embedding and on each residual branch
  double attention_dropout = 0;  ///< probability, on attention weights
  bool pre_norm = true;
  bool sandwich_norm = false;        ///< pre-norm, and one more norm on the outputs of attention and MLP (Gemma 2)
  bool input_norm = true;            ///< false: with sandwich_norm, only the norms on outputs (OLMo 2)
  bool parallel_residual = false;    ///< attention and MLP read the same stream (GPT-NeoX, Falcon)
  bool shared_norm = false;          ///< with parallel_residual: they read the output of one norm (Falcon)
  double residual_multiplier = 1;    ///< factor on the outputs of attention and MLP (Granite)
  bool zero_centered_norm = false;   ///< norms multiply by 1 + weight (Gemma)
  bool qk_norm = false;              ///< RMSNorm over each head's query and key, before rope (Qwen3)
  bool qk_norm_whole = false;        ///< with qk_norm: over all heads together (OLMoE)
  double embedding_scale = 1;        ///< factor on the embedding's output, rounded to the compute dtype
  double query_pre_attn_scalar = 0;  ///< scores are divided by its square root; head_dim unless given
  bool attention_sinks = false;      ///< each head has a learned score without a value in its softmax (GPT-OSS)
  double attention_softcap = 0;      ///< scores s become c tanh(s / c); 0 = off
  double final_softcap = 0;          ///< the same for logits
  double logits_scaling = 1;         ///< logits are divided by it (Granite)
  int64_t mup_base_width = 0;        ///< see mup.hpp; 0: off
  int64_t pad_token_id = -1;         ///< the embedding gets no gradient where it reads this token; -1: none
  double initializer_std = 0.02;
  /// a token attends to itself and the window - 1 tokens before it; 0 = all
  int64_t sliding_window = 0;
  std::vector<int64_t> sliding_window_layers;  ///< layers with the window, ascending; empty = all
  ExpertsConfig experts;
  LatentConfig latent;

  // Without a key: the task or the model's folder decides.
  Head head = Head::language;
  LabelProblem problem = LabelProblem::single;  ///< of a head that scores
  std::vector<std::string> labels;              ///< of its outputs; empty: it has one
  double router_aux = 0;  ///< coefficient of the balance of experts in training, unless [objective] gives another one

  bool scores() const { return head != Head::language; }
  bool classifies() const { return scores() && (!labels.empty() || problem == LabelProblem::regression); }
  /// Numbers of a row of a head that scores.
  int64_t outputs() const { return labels.empty() ? 1 : static_cast<int64_t>(labels.size()); }
  /// True if the head is the matrix of the embedding.
  bool ties_head() const { return tie_embeddings && !scores(); }

  /// True if routers choose experts by a bias, too.
  bool has_router_bias() const { return family == Family::deepseek_v3 && experts.exist(); }

  bool gated() const { return is_gated(activation); }
  /// Width in units of the width whose learning rate and initial values hold.
  double width_ratio() const {
    return mup_base_width == 0 ? 1 : static_cast<double>(d_model) / static_cast<double>(mup_base_width);
  }
  /// Maximum length of a sequence in tokens. Scaled rope reaches further than max_seq_len where that is the length
  /// before scaling; dynamic rope is unlimited.
  int64_t longest_sequence() const;
  int64_t rotary_dim() const {
    return latent.exist() ? latent.rotated
                          : static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  int64_t window_of_layer(int64_t layer) const;
  bool has_rope(int64_t layer) const {
    return positions == Positions::rope && !std::ranges::binary_search(no_rope_layers, layer);
  }
  /// True if the rope of a layer is that of rope_local_theta.
  bool has_local_rope(int64_t layer) const {
    return has_rope(layer) && rope_local_theta > 0 && window_of_layer(layer) > 0;
  }
  void visit(DeckKeys& keys);
  /// Passes have no dropout; `why` they have none.
  void drop_dropout(DeckLoader& deck, const std::string& why);
  /// Sets the keys that the deck leaves to the family or to other keys, then checks the keys against each other. With
  /// `loaded`, the model in `path`, every key but the dropouts is that model's, and the deck may only repeat its
  /// values. `wanted`: the head that the task needs, if it needs one.
  void resolve(DeckLoader& deck, int64_t sequence_length, const ModelConfig* loaded = nullptr,
               std::optional<Head> wanted = std::nullopt);

 private:
  void take_over(DeckLoader& deck, const ModelConfig& loaded);
  void mark_unused(DeckLoader& deck) const;
  void set_family_defaults(DeckLoader& deck);
  void check(DeckLoader& deck, int64_t sequence_length) const;
};

#define LLMTRAIN_FAMILY_NAME(name) std::string_view(#name),
template <>
inline constexpr auto enum_names<ModelConfig::Family> = std::array{LLMTRAIN_FAMILIES(LLMTRAIN_FAMILY_NAME)};
#undef LLMTRAIN_FAMILY_NAME
template <>
inline constexpr auto enum_names<ModelConfig::Norm> = name_list("layernorm", "rmsnorm");
template <>
inline constexpr auto enum_names<ModelConfig::Activation> = name_list("gelu", "gelu_tanh", "relu", "silu", "swiglu",
                                                                      "geglu", "geglu_tanh", "swiglu_oai");
template <>
inline constexpr auto enum_names<ModelConfig::Positions> = name_list("learned", "rope");

}  // namespace llmtrain
