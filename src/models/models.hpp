#pragma once
// Description of a model family. To add one, add a name to families.hpp and a file of that name with its FamilyEntry.

#include <memory>
#include <optional>
#include <string_view>

#include "models/decoder.hpp"

namespace llmtrain {

/// Shape of a resolved config (vocab_size known); `tokens` is the tokenizer's vocabulary.
DecoderShape decoder_shape(const ModelConfig& config, int64_t tokens);

/// The shape with the smallest sizes, for names of parameters, which do not depend on them.
DecoderShape nominal_shape(ModelConfig model);

/// `trained` says what is trained; empty: everything.
std::unique_ptr<Model> make_model(const ModelConfig& config, int64_t tokens, TrainedRule trained = {});

/// A family's experts in config.json, and the defaults of Transformers.
struct HuggingFaceExperts {
  std::string_view count;  ///< key; Transformers also reads the other families' one
  std::string_view d_ff;   ///< key
  int64_t default_count;
  std::optional<int64_t> default_per_token;  ///< empty: a required key
  int64_t default_d_ff;
  int64_t default_d_ff_shared = 0;  ///< above 0: the family has a shared expert with a gate
  bool has_norm_topk = true;        ///< a key; else the weights are normalised
  bool has_dense_layers = false;    ///< keys decoder_sparse_step and mlp_only_layers
  double default_router_aux = 0.001;
  bool has_biases = false;  ///< of experts and routers; keys swiglu_alpha and swiglu_limit
};

/// Transformers' name of the family, and the defaults of its configuration class for keys that config.json omits.
struct HuggingFaceFamily {
  enum class Windows : uint8_t {
    none,
    all_layers,        ///< a key without a value: none; no key: `window`
    even_layers,       ///< the same
    listed_layers,     ///< the same, in the layers of layer_types; without layer_types in all
    last_layers,       ///< from max_window_layers on, with use_sliding_window
    unrotated_layers,  ///< those without rope, with use_sliding_window
    five_of_six,       ///< all but every sixth (sliding_window_pattern)
  };
  std::string_view architecture = {};  ///< "LlamaForCausalLM"
  std::string_view model_type = {};    ///< empty: the family's name
  int64_t max_seq_len = 2048;
  int64_t n_kv_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;    ///< 0: d_model / n_heads
  double norm_epsilon = 1e-6;
  std::string_view epsilon_key = "rms_norm_eps";
  double rope_theta = 10000;
  bool tie_embeddings = false;
  Windows windows = Windows::none;
  int64_t window = 4096;
  bool attention_bias = false;  ///< config.json has this key
  bool mlp_bias = false;        ///< config.json has this key
  bool padding_row = true;      ///< pad_token_id is the padding_idx of the embedding
  int64_t pad_token_id = -1;    ///< -1: none
  std::optional<HuggingFaceExperts> experts = {};
  bool latent = false;        ///< keys of latent attention
  double partial_rotary = 0;  ///< default of partial_rotary_factor; 0: the key is read with scaling only
};

/// Tensor names of Llama, which most families share.
DecoderNames llama_names();
/// The same with those of Qwen's experts, which most families with experts share.
DecoderNames qwen_expert_names();
/// The same with those of latent attention and of DeepSeek's shared experts.
DecoderNames deepseek_names();
/// Components and widths of Llama; descendant families override the differences.
void llama_defaults(ModelConfig& config);

/// A family is Llama where it says nothing else.
struct FamilyEntry {
  std::string_view doc;  ///< description, for --help
  /// Sets every field that a deck may leave to the family; sizes are known.
  void (*defaults)(ModelConfig& config) = llama_defaults;
  /// Sets names, and properties that follow from the config alone.
  void (*shape)(DecoderShape& shape) = [](DecoderShape& decoder) { decoder.names = llama_names(); };
  HuggingFaceFamily hugging_face = {};
};

const FamilyEntry& family_entry(ModelConfig::Family family);

// One function per family, each in the family's file.
#define LLMTRAIN_FAMILY_ENTRY(name) FamilyEntry family_##name();
LLMTRAIN_FAMILIES(LLMTRAIN_FAMILY_ENTRY)
#undef LLMTRAIN_FAMILY_ENTRY

}  // namespace llmtrain
