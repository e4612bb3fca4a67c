#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/config/config_families.hpp"
#include "hf/config/config_json.hpp"
#include "hf/config/config_keys.hpp"
#include "hf/config/config_no_effect.hpp"
#include "hf/weights/weight_index.hpp"
#include "kernels/attention.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using Family = ModelConfig::Family;
using Windows = HuggingFaceFamily::Windows;

constexpr int64_t max_width = int64_t{1} << 18, max_tokens = int64_t{1} << 30, max_positions = int64_t{1} << 24;

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw UserError(ExitCode::bad_content, place + ": " + what);
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// Returns whether an architecture is a class of the family, in any spelling: LlamaForCausalLM, LLaMAForCausalLM,
/// LlamaModel.
bool is_class_of(std::string_view architecture, std::string_view family) {
  const std::string name = in_lower_case(architecture);
  std::string own(family);
  std::erase(own, '_');  // Qwen2MoeForCausalLM of qwen2_moe
  constexpr std::array<std::string_view, 4> classes = {"forcausallm", "lmheadmodel", "model", "doubleheadsmodel"};
  return std::ranges::any_of(classes, [&](std::string_view c) { return name == own + std::string(c); });
}

/// Reads the head of a model for sequences or tokens; another one leaves `c` as it is. Transformers counts the labels
/// by id2label, and without it they are two. One label has no name: it is a number.
void read_labels(const nlohmann::json& document, const std::string& place, ModelConfig& c) {
  const auto classes = document.find("architectures");
  const bool one = classes != document.end() && classes->is_array() && classes->size() == 1;
  if (!one || !classes->front().is_string()) return;
  const std::string name = in_lower_case(classes->front().get<std::string>());
  const bool tokens = name.ends_with("fortokenclassification");
  if (!tokens && !name.ends_with("forsequenceclassification")) return;
  c.head = tokens ? ModelConfig::Head::token_score : ModelConfig::Head::score;
  const auto names = document.find("id2label"), number = document.find("num_labels");
  const bool named = names != document.end() && names->is_object();
  const size_t count = named                                                      ? names->size()
                       : number != document.end() && number->is_number_unsigned() ? number->get<size_t>()
                                                                                  : 2;
  if (count < 1 || count > max_labels)
    refuse(place, fmt::format("num_labels: {}: there may be 1 to {}", count, max_labels));
  for (size_t i = 0; i < count && count > 1; ++i) {
    const auto label = named ? names->find(std::to_string(i)) : names;
    if (named && (label == names->end() || !label->is_string())) {
      refuse(place, fmt::format("id2label: it has no name for {}: its keys must be 0 to {}", i, count - 1));
    }
    c.labels.push_back(named ? label->get<std::string>() : fmt::format("LABEL_{}", i));
  }
  const auto type = document.find("problem_type");
  if (type == document.end() || !type->is_string()) return;
  if (*type == "multi_label_classification" && count > 1) c.problem = LabelProblem::multi;
  if (*type != "regression") return;
  if (count > 1)
    refuse(place, fmt::format("problem_type: regression with {} labels: only one number is supported", count));
  c.problem = LabelProblem::regression;
}

/// Transformers' name for Mistral whose layer_types say which layers have the window; it also takes a file of "mistral"
/// with layer_types as one of this type.
constexpr std::string_view other_type_of_mistral = "ministral";

/// Families are named by model_type, as in Transformers; an older file may have architectures alone.
Family find_family(ConfigKeys& keys, const std::string& place, bool scores, std::vector<std::string>& warnings) {
  const nlohmann::json* listed = keys.value("architectures");
  const std::vector<std::string> architectures = listed != nullptr && listed->is_string()
                                                     ? std::vector{listed->get<std::string>()}
                                                     : keys.texts("architectures", 16);
  std::string type = keys.text("model_type", "");
  if (type == other_type_of_mistral) type = name_of(Family::mistral);
  if (type.empty() && architectures.empty()) refuse(place, "it names neither model_type nor architectures");
  constexpr auto names = enum_names<Family>;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto is_own = [&](const std::string& name) {
      return (scores && !type.empty()) || is_class_of(name, names[i]) ||
             (names[i] == name_of(Family::mistral) && is_class_of(name, other_type_of_mistral));
    };
    const auto family = static_cast<Family>(i);
    if (type.empty() ? !is_own(architectures.front()) : type != model_type_of(family)) continue;
    if (!std::ranges::all_of(architectures, is_own)) {
      warnings.push_back(
          fmt::format("{}: architectures: {}: model_type takes precedence, so the model is read as {}, without "
                      "additions of another class",
                      place, printable(joined(architectures)), architecture_name(family)));
    }
    return family;
  }
  if (type == name_of(Family::gemma3)) {
    refuse(place, "model_type gemma3 is that of models with images; only those of texts are supported (gemma3_text)");
  }
  const std::string& name = type.empty() ? architectures.front() : type;
  refuse(place,
         fmt::format("{} {} is not supported; this version supports {}{}", type.empty() ? "architecture" : "model_type",
                     printable(name), joined(names), did_you_mean(name, names)));
}

/// Code that comes with a model is not run, like in Transformers without trust_remote_code: the stock model of its
/// model_type is used.
void warn_of_code(ConfigKeys& keys, Family family, const std::string& place, std::vector<std::string>& warnings) {
  const nlohmann::json* code = keys.value("auto_map");
  if (code == nullptr) return;
  // Phi-3 was published with code before Transformers supported it; the code is equivalent.
  const auto entry = [&](const char* key) {
    const bool there = code->is_object() && code->contains(key) && (*code)[key].is_string();
    return there ? (*code)[key].get<std::string>() : std::string();
  };
  const bool stock = family == Family::phi3 && entry("AutoConfig").ends_with("configuration_phi3.Phi3Config") &&
                     entry("AutoModelForCausalLM").ends_with("modeling_phi3.Phi3ForCausalLM");
  if (stock) return;
  warnings.push_back(
      fmt::format("{}: auto_map: the model's custom code ({}) is not run; the stock {} model "
                  "is used, as by Transformers without trust_remote_code",
                  place, printable_value(*code), architecture_name(family)));
}

/// Refuses settings that compute something else than the stock model.
void refuse_other_mathematics(ConfigKeys& keys, Family family, const std::string& place) {
  if (const nlohmann::json* value = keys.value("quantization_config"); value != nullptr) {
    const auto entry = [&](const char* key) {
      return value->is_object() ? value->value(key, nlohmann::json()) : *value;
    };
    const nlohmann::json method = entry("quant_method");
    // Folders of bitsandbytes' first versions have no quant_method.
    const bool unnamed = method.is_null() && (entry("load_in_4bit") == true || entry("load_in_8bit") == true);
    const bool published = method == "mxfp4" && family == Family::gpt_oss;  // of experts, read dequantised
    const bool packed = packed_format(*value, place + ": quantization_config").has_value();
    if (method != "bitsandbytes" && !unnamed && !published && !packed) {
      refuse(place, fmt::format("quantization_config: the weights are quantised ({}); only nf4, fp4 and int8 of "
                                "bitsandbytes, gptq and awq are supported. Start from the original model",
                                printable_value(method)));
    }
    const nlohmann::json type = entry("bnb_4bit_quant_type");
    if (!type.is_null() && type != "nf4" && type != "fp4") {
      refuse(place,
             fmt::format("quantization_config.bnb_4bit_quant_type: must be nf4 or fp4, not {}", printable_value(type)));
    }
  }
  keys.only("is_encoder_decoder", false, "only decoders are supported");
  // null is read as false by some attention of Transformers and as true by other.
  if (keys.has_key("is_causal") && !keys.has("is_causal")) keys.problem("is_causal", "must be true or false, not null");
  keys.only("is_causal", true, "only causal attention is supported");
  keys.only("per_layer_config", nlohmann::json::object(), "settings of single layers are not supported");
}

Activation gated_activation(ConfigKeys& keys, std::string_view key, const std::string& fallback) {
  const std::string name = keys.text(key, fallback);
  if (name == "silu" || name == "swish") return Activation::swiglu;
  if (name == "gelu") return Activation::geglu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::geglu_tanh;
  keys.problem(key, printable(name) + ": must be silu, gelu or gelu_pytorch_tanh");
  return Activation::swiglu;
}

/// Reads a key that Transformers also accepts under other families' name (attribute_map).
int64_t renamed(ConfigKeys& keys, std::string_view key, std::string_view other, int64_t high) {
  if (!keys.has(other)) return keys.integer(key, {}, 1, high);
  const int64_t value = keys.integer(other, {}, 1, high);
  if (keys.integer(key, value, 1, high) != value) keys.problem(key, fmt::format("must agree with {}", other));
  return value;
}

void read_gpt2(ConfigKeys& keys, ModelConfig& c) {
  c.d_model = renamed(keys, "n_embd", "hidden_size", max_width);
  c.n_layers = renamed(keys, "n_layer", "num_hidden_layers", 4096);
  c.n_heads = renamed(keys, "n_head", "num_attention_heads", 4096);
  c.n_kv_heads = c.n_heads;
  c.max_seq_len = renamed(keys, "n_positions", "max_position_embeddings", max_positions);
  family_entry(c.family).defaults(c);
  c.d_ff = keys.integer("n_inner", 4 * c.d_model, 1, max_width * 4);
  c.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  c.tie_embeddings = keys.boolean("tie_word_embeddings", true);
  if (c.d_model % c.n_heads != 0) keys.problem("n_head", fmt::format("{} heads must divide n_embd", c.n_heads));
  c.head_dim = std::max<int64_t>(c.d_model / c.n_heads, 1);
  c.activation = plain_activation(keys, "activation_function", "gelu_new");
  keys.only("scale_attn_weights", true, "scores without the factor 1 / sqrt(head_dim) are not supported");
  keys.only("scale_attn_by_inverse_layer_idx", false, "scores scaled by layer are not supported");
}

/// Reads from layer_types, otherwise from `otherwise`, which layers have the window.
template <class Otherwise>
void read_layer_windows(ConfigKeys& keys, ModelConfig& c, const Otherwise& otherwise) {
  const std::vector<std::string> types = keys.texts("layer_types", 4096);
  if (keys.has("layer_types") && static_cast<int64_t>(types.size()) != c.n_layers) {
    keys.problem("layer_types", fmt::format("has {} entries for {} layers", types.size(), c.n_layers));
    return;
  }
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < c.n_layers; ++i) {
    bool sliding = otherwise(i);
    if (!types.empty()) {
      const std::string& type = types[static_cast<size_t>(i)];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention" && type != "attention") {
        keys.problem("layer_types", printable(type) + ": must be full_attention or sliding_attention");
        return;
      }
    }
    if (sliding) layers.push_back(i);
  }
  if (!layers.empty() && c.sliding_window == 0) {
    keys.problem("layer_types", "names sliding layers, but sliding_window is missing");
    return;
  }
  if (layers.empty()) c.sliding_window = 0;
  if (static_cast<int64_t>(layers.size()) == c.n_layers) layers.clear();  // all
  c.sliding_window_layers = layers;
}

void read_windows(ConfigKeys& keys, ModelConfig& c, const HuggingFaceFamily& hf) {
  c.sliding_window = 0;
  c.sliding_window_layers.clear();
  if (hf.windows == Windows::none || hf.windows == Windows::all_layers) {  // layer_types is not read
    keys.no_effect_as("layer_types", nlohmann::json(static_cast<size_t>(c.n_layers), "full_attention"));
  }
  if (hf.windows == Windows::none) return keys.no_effect_as("sliding_window", 0);
  const int64_t otherwise = keys.has_key("sliding_window") ? 0 : hf.window;  // absent is not null
  if (hf.windows == Windows::last_layers) {
    const bool used = keys.boolean("use_sliding_window", false);
    const int64_t window = keys.integer("sliding_window", otherwise, 0, max_positions);
    if (used) c.sliding_window = window;
    const int64_t first = keys.integer("max_window_layers", 28, 0, 4096);
    return read_layer_windows(keys, c, [&](int64_t layer) { return c.sliding_window > 0 && layer >= first; });
  }
  if (hf.windows == Windows::unrotated_layers) {
    const int64_t window = keys.integer("sliding_window", otherwise, 0, max_positions);
    if (keys.boolean("use_sliding_window", false)) c.sliding_window = window;
    keys.no_effect("max_window_layers");
    return read_layer_windows(keys, c, [&](int64_t i) { return c.sliding_window > 0 && !c.has_rope(i); });
  }
  c.sliding_window = keys.integer("sliding_window", otherwise, 1, max_positions);
  if (hf.windows == Windows::five_of_six) {
    const int64_t every = keys.integer("sliding_window_pattern", 6, 1, 4096);
    keys.no_effect("_sliding_window_pattern");
    return read_layer_windows(keys, c, [&](int64_t layer) { return (layer + 1) % every != 0; });
  }
  if (hf.windows == Windows::even_layers) {
    read_layer_windows(keys, c, [&](int64_t layer) { return c.sliding_window > 0 && layer % 2 == 0; });
  }
  if (hf.windows == Windows::listed_layers) {
    read_layer_windows(keys, c, [&](int64_t) { return c.sliding_window > 0; });
  }
}

void read_head_dim(ConfigKeys& keys, ModelConfig& c, const HuggingFaceFamily& hf) {
  const int64_t head_dim = hf.head_dim > 0 ? hf.head_dim : std::max<int64_t>(c.d_model / c.n_heads, 1);
  if (hf.head_dim == 0 && head_dim * c.n_heads != c.d_model && !keys.has("head_dim")) {
    keys.problem("num_attention_heads", fmt::format("{} heads must divide hidden_size", c.n_heads));
  }
  c.head_dim = c.family == Family::gpt_neox ? head_dim : keys.integer("head_dim", head_dim, 1, 4096);
}

void read_llama_like(ConfigKeys& keys, ModelConfig& c, std::vector<std::string>& problems,
                     std::vector<std::string>& unknown) {
  const HuggingFaceFamily& hf = family_entry(c.family).hugging_face;
  c.d_model = keys.integer("hidden_size", {}, 1, max_width);
  c.n_layers = keys.integer("num_hidden_layers", {}, 1, 4096);
  c.n_heads = keys.integer("num_attention_heads", {}, 1, 4096);
  const bool one_each = c.family == Family::gpt_neox;  // a key head for each query head
  const int64_t kv_heads = keys.has_key("num_key_value_heads") || hf.n_kv_heads == 0 ? c.n_heads : hf.n_kv_heads;
  c.n_kv_heads = one_each ? c.n_heads : keys.integer("num_key_value_heads", kv_heads, 1, 4096);
  if (c.n_heads % c.n_kv_heads != 0) {
    keys.problem("num_key_value_heads", fmt::format("{} must divide the {} heads", c.n_kv_heads, c.n_heads));
  }
  family_entry(c.family).defaults(c);
  c.d_ff = keys.integer("intermediate_size", {}, 1, max_width * 4);
  hf.latent ? read_latent(keys, c) : read_head_dim(keys, c, hf);
  c.max_seq_len = rotary_positions(keys, hf.max_seq_len);
  c.norm_epsilon = keys.number(hf.epsilon_key, hf.norm_epsilon);
  c.tie_embeddings = keys.boolean("tie_word_embeddings", hf.tie_embeddings);
  if (c.family == Family::gpt_oss) {
    // Its experts have a function of their own, and published files repeat keys for other programs.
    keys.no_effect("hidden_act initial_context_length experts_per_token");
  } else if (c.family == Family::gemma2 || c.family == Family::gemma3) {
    c.activation = gated_activation(keys, "hidden_activation", "gelu_pytorch_tanh");
    keys.no_effect("hidden_act");  // in older files; hidden_activation takes precedence
  } else if (!c.gated()) {
    c.activation =
        plain_activation(keys, "hidden_act", c.activation == Activation::gelu ? "gelu" : "gelu_pytorch_tanh");
  } else {
    c.activation = gated_activation(keys, "hidden_act", "silu");
  }
  if (c.family == Family::smollm3) read_layers_without_rope(keys, c);
  read_windows(keys, c, hf);
  read_rope(keys, c, problems, unknown);
}

/// Checks the limits of the kernels, like ModelConfig::check() for a deck.
void check_heads(ConfigKeys& keys, const ModelConfig& c) {
  const char* key = c.family == Family::gpt2 ? "n_head"
                    : c.latent.exist()       ? "qk_rope_head_dim"
                    : keys.has("head_dim")   ? "head_dim"
                                             : "num_attention_heads";
  if (c.head_dim > max_head_dim) {
    keys.problem(key,
                 fmt::format("heads of {} elements are too wide; at most {} are supported", c.head_dim, max_head_dim));
  }
  if (c.positions == ModelConfig::Positions::rope && (c.rotary_dim() % 2 != 0 || c.rotary_dim() == 0)) {
    keys.problem(
        key, fmt::format("rope rotates pairs of elements, so a head must have an even number of them above 0, not {}",
                         c.rotary_dim()));
  }
}

int64_t read_id(ConfigKeys& keys, std::string_view key) { return keys.integer(key, -1, -1, max_tokens); }

TokenIds read_ids(ConfigKeys& keys) {
  TokenIds ids;
  ids.bos = read_id(keys, "bos_token_id");
  ids.pad = read_id(keys, "pad_token_id");
  const nlohmann::json* eos = keys.value("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    for (const nlohmann::json& id : *eos) {
      if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(max_tokens) && ids.eos.size() < 64) {
        ids.eos.push_back(id.get<int64_t>());
      } else {
        keys.problem("eos_token_id", "must be a list of token ids");
        break;
      }
    }
  } else if (const int64_t id = read_id(keys, "eos_token_id"); id >= 0) {
    ids.eos.push_back(id);
  }
  return ids;
}

/// The row of the embedding that Transformers does not train where the input has its token; -1: none.
int64_t padding_row(const ConfigKeys& keys, const ModelConfig& c, int64_t id) {
  constexpr int64_t none = -1;
  const HuggingFaceFamily& hf = family_entry(c.family).hugging_face;
  if (!hf.padding_row) return none;
  if (!keys.has("pad_token_id"))
    id = keys.has_key("pad_token_id") ? none : hf.pad_token_id;
  else if (id < 0)
    id = c.vocab_size - 1;  // PyTorch counts -1 from the end
  return id < c.vocab_size ? id : none;
}

}  // namespace

std::string_view architecture_name(ModelConfig::Family family) {
  return family_entry(family).hugging_face.architecture;
}

/// The storage of a folder of bitsandbytes; read_hf_config() has made the object that of the tensors.
QuantizationConfig read_quantization(const nlohmann::json& document, const std::string& place) {
  QuantizationConfig config;
  const auto object = document.find("quantization_config");
  if (object == document.end() || !object->is_object()) return config;
  const auto entry = [&](const char* key) { return object->value(key, nlohmann::json()); };
  config.bits = entry("load_in_4bit") == true ? 4 : entry("load_in_8bit") == true ? 8 : 0;
  config.type = entry("bnb_4bit_quant_type") == "nf4" ? QuantizationConfig::Type::nf4 : QuantizationConfig::Type::fp4;
  config.double_quantization = entry("bnb_4bit_use_double_quant") == true;
  const nlohmann::json size = entry("bnb_4bit_blocksize");
  for (const int known : {32, 128, 256}) {
    if (size == known) config.block_size = known;
  }
  const nlohmann::json threshold = entry("llm_int8_threshold"), skipped = entry("llm_int8_skip_modules");
  if (threshold.is_number()) {
    config.outlier_threshold = std::max(threshold.get<double>(), 0.0);  // bitsandbytes: none are outliers
  } else if (!threshold.is_null()) {
    refuse(place,
           fmt::format("quantization_config.llm_int8_threshold is {}, not a number", printable_value(threshold)));
  }
  if (!skipped.is_array()) return config;
  config.skip_modules.clear();
  for (const nlohmann::json& name : skipped) {
    if (name.is_string()) config.skip_modules.push_back(name);
  }
  return config;
}

HfConfig parse_hf_config(std::string_view text, const std::string& place) {
  const nlohmann::json document = parse_json(text, place);
  if (!document.is_object()) refuse(place, "not an object of keys");
  std::vector<std::string> problems, unknown;
  ConfigKeys keys(&document, "", problems);
  HfConfig config;
  ModelConfig& c = config.model;
  read_labels(document, place, c);
  c.family = find_family(keys, place, c.scores(), config.warnings);
  warn_of_code(keys, c.family, place, config.warnings);
  refuse_other_mathematics(keys, c.family, place);
  c.vocab_size = keys.integer("vocab_size", {}, 1, max_tokens);
  if (c.family == Family::gpt2) {
    read_gpt2(keys, c);
  } else if (c.family == Family::falcon) {
    read_falcon(keys, c);
    read_windows(keys, c, family_entry(c.family).hugging_face);
    read_rope(keys, c, problems, unknown);
  } else {
    read_llama_like(keys, c, problems, unknown);
  }
  read_family_keys(keys, c);
  check_heads(keys, c);
  c.initializer_std = keys.number("initializer_range", 0.02);
  config.ids = read_ids(keys);
  c.pad_token_id = padding_row(keys, c, config.ids.pad);
  for (std::string_view names : {no_effect_base, no_effect_generation, no_effect_special}) keys.no_effect(names);
  keys.list_unknown(unknown);
  if (!problems.empty()) refuse(place, joined(problems, "\n  "));
  if (!unknown.empty()) config.warnings.push_back(place + ": " + unknown_keys_text(unknown));
  config.quantization = stored_quantization(read_quantization(document, place), c);
  return config;
}

TokenIds parse_generation_ids(std::string_view text, const std::string& place, const TokenIds& otherwise) {
  const nlohmann::json document = parse_json(text, place);
  if (!document.is_object()) refuse(place, "not an object of keys");
  std::vector<std::string> problems;
  ConfigKeys keys(&document, "", problems);
  TokenIds ids = read_ids(keys);
  if (!problems.empty()) refuse(place, joined(problems, "\n  "));
  if (ids.bos < 0) ids.bos = otherwise.bos;
  if (ids.pad < 0) ids.pad = otherwise.pad;
  if (ids.eos.empty()) ids.eos = otherwise.eos;
  return ids;
}

}  // namespace llmtrain
