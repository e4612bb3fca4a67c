#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/config/config_families.hpp"
#include "hf/config/config_json.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using Family = ModelConfig::Family;
using Windows = HuggingFaceFamily::Windows;

/// Returns the name in Transformers; gated kinds are named by the function of the gate.
std::string_view activation_name(Activation activation, Family family) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return "gelu";
    case Activation::gelu_tanh:
    case Activation::geglu_tanh:
      return family == Family::gpt2 ? "gelu_new" : "gelu_pytorch_tanh";
    case Activation::relu:
      return "relu";
    case Activation::silu:
    case Activation::swiglu:
    case Activation::swiglu_oai:
      return "silu";
  }
  throw Error("unknown activation");
}

void write_gpt2(nlohmann::json& j, const ModelConfig& c) {
  j["n_embd"] = c.d_model;
  j["n_layer"] = c.n_layers;
  j["n_head"] = c.n_heads;
  j["n_positions"] = c.max_seq_len;
  j["n_inner"] = nullptr;
  if (c.d_ff != 4 * c.d_model) j["n_inner"] = c.d_ff;
  j["activation_function"] = activation_name(c.activation, c.family);
  j["layer_norm_epsilon"] = c.norm_epsilon;
  j["resid_pdrop"] = c.dropout;
  j["embd_pdrop"] = c.dropout;
  j["attn_pdrop"] = c.attention_dropout;
}

void write_windows(nlohmann::json& j, const ModelConfig& c, Windows windows) {
  const bool all = c.sliding_window_layers.empty();
  j["sliding_window"] = nullptr;
  if (c.sliding_window > 0) j["sliding_window"] = c.sliding_window;
  if (windows == Windows::all_layers || (windows == Windows::listed_layers && all)) return;
  nlohmann::json types = nlohmann::json::array();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool listed = std::ranges::find(c.sliding_window_layers, layer) != c.sliding_window_layers.end();
    types.push_back(c.sliding_window > 0 && (all || listed) ? "sliding_attention" : "full_attention");
  }
  j["layer_types"] = types;
  if (windows == Windows::listed_layers) {  // older readers of mistral would pass over layer_types
    j["model_type"] = "ministral";
    j["architectures"] = {"MinistralForCausalLM"};
  }
  if (windows == Windows::unrotated_layers || windows == Windows::last_layers) {
    j["use_sliding_window"] = c.sliding_window > 0;
  }
  if (windows != Windows::last_layers) return;
  j["max_window_layers"] = all && c.sliding_window > 0 ? 0 : c.n_layers;
  // If only the last layers have it, max_window_layers informs readers that do not know layer_types.
  if (!all && static_cast<int64_t>(c.sliding_window_layers.size()) == c.n_layers - c.sliding_window_layers.front()) {
    j["max_window_layers"] = c.sliding_window_layers.front();
  }
}

void write_llama_like(nlohmann::json& j, const ModelConfig& c) {
  const HuggingFaceFamily& hf = family_entry(c.family).hugging_face;
  j["hidden_size"] = c.d_model;
  j["num_hidden_layers"] = c.n_layers;
  j["num_attention_heads"] = c.n_heads;
  j["num_key_value_heads"] = c.n_kv_heads;
  j["head_dim"] = c.head_dim;
  j["intermediate_size"] = c.d_ff;
  j["max_position_embeddings"] = c.max_seq_len;
  j[hf.epsilon_key] = c.norm_epsilon;
  const bool gemma = c.family == Family::gemma2 || c.family == Family::gemma3;
  j[gemma ? "hidden_activation" : "hidden_act"] = activation_name(c.activation, c.family);
  j["attention_dropout"] = c.attention_dropout;
  if (hf.windows != Windows::none) write_windows(j, c, hf.windows);
  if (hf.attention_bias) j["attention_bias"] = c.qkv_bias;
  if (hf.mlp_bias) j["mlp_bias"] = c.mlp_bias;
  if (hf.experts) write_experts(j, c);
  write_family_keys(j, c);
  write_rope(j, c);
}

void write_ids(nlohmann::json& j, const ModelConfig& c, const TokenIds& ids) {
  const auto id = [&](int64_t value) {
    return value >= 0 && value < c.vocab_size ? nlohmann::json(value) : nlohmann::json();
  };
  j["bos_token_id"] = id(ids.bos);
  j["pad_token_id"] = id(ids.pad);
  j["eos_token_id"] = nullptr;
  if (ids.eos.size() == 1) j["eos_token_id"] = id(ids.eos.front());
  if (ids.eos.size() > 1) j["eos_token_id"] = ids.eos;
}

/// "LlamaForCausalLM" -> "LlamaForSequenceClassification"
std::string classifier_of(std::string name, ModelConfig::Head head) {
  const char* end_here =
      head == ModelConfig::Head::token_score ? "ForTokenClassification" : "ForSequenceClassification";
  for (const std::string_view end : {"ForCausalLM", "LMHeadModel", "DoubleHeadsModel"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size()) + end_here;
  }
  return name;
}

void set_labels(nlohmann::json& j, const ModelConfig& model) {
  nlohmann::json numbers = nlohmann::json::object(), names = nlohmann::json::object();
  for (int64_t i = 0; i < model.outputs(); ++i) {
    const std::string name = model.labels.empty() ? "LABEL_0" : model.labels[static_cast<size_t>(i)];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  j["num_labels"] = model.outputs();
  j["id2label"] = std::move(names);
  j["label2id"] = std::move(numbers);
  j.erase("problem_type");
  if (!model.classifies() || model.head != ModelConfig::Head::score) return;
  j["problem_type"] = model.problem == LabelProblem::regression ? "regression"
                      : model.problem == LabelProblem::multi    ? "multi_label_classification"
                                                                : "single_label_classification";
}

void set_score_head(nlohmann::json& j, int64_t pad, const ModelConfig& model) {
  nlohmann::json& classes = j["architectures"];
  if (!classes.is_array() || classes.empty() || !classes.front().is_string()) {
    const HfConfig read = parse_hf_config(j.dump(), "config.json");
    classes = {architecture_name(read.model.family)};
  }
  classes = {classifier_of(classes.front().get<std::string>(), model.head)};
  set_labels(j, model);
  nlohmann::json& id = j["pad_token_id"];
  if (id.is_null() && pad >= 0) id = pad;
  if (model.head != ModelConfig::Head::score) return;
  const nlohmann::json ends = j.value("eos_token_id", nlohmann::json());
  const bool is_end = ends == id || (ends.is_array() && std::ranges::find(ends, id) != ends.end());
  if (is_end) id = nullptr;
}

/// Returns the name and deck value of every [model] key that config.json determines; ids of tokens are written beside.
std::vector<std::pair<std::string, std::string>> printed(ModelConfig model) {
  DeckKeys keys;
  model.visit(keys);
  std::vector<std::pair<std::string, std::string>> values;
  for (const DeckKeys::Key& key : keys.keys()) {
    constexpr std::string_view others[] = {"path", "dropout", "attention_dropout", "pad_token_id", "mup_base_width"};
    if (std::ranges::find(others, key.name) == std::end(others)) values.emplace_back(key.name, key.print());
  }
  return values;
}

}  // namespace

std::string write_hf_config(const ModelConfig& c, const TokenIds& ids, std::string_view dtype) {
  nlohmann::json j = nlohmann::json::object();
  j["architectures"] = {architecture_name(c.family)};
  j["model_type"] = model_type_of(c.family);
  j["vocab_size"] = c.vocab_size;
  j["initializer_range"] = c.initializer_std;
  j["tie_word_embeddings"] = c.tie_embeddings;
  j["torch_dtype"] = dtype;
  j["use_cache"] = true;
  write_ids(j, c, ids);
  if (c.family == Family::gpt2) {
    write_gpt2(j, c);
  } else if (c.family == Family::falcon) {
    j["activation"] = activation_name(c.activation, c.family);
    write_falcon(j, c);
    write_rope(j, c);
  } else {
    write_llama_like(j, c);
  }
  if (c.scores()) set_score_head(j, ids.pad, c);
  return j.dump(2) + "\n";
}

std::string hf_config_obstacle(const ModelConfig& model) {
  HfConfig read;
  try {
    read = parse_hf_config(write_hf_config(model, {}, "float32"), "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  const auto wanted = printed(model), found = printed(read.model);
  std::string differing;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].second == found[i].second) continue;
    differing += fmt::format("{}model.{} = {}", differing.empty() ? "" : ", ", wanted[i].first, wanted[i].second);
  }
  if (differing.empty()) return "";
  return fmt::format("Transformers has no {} model with {}", name_of(model.family), differing);
}

std::string with_score_head(const std::string& config_text, const std::string& place, int64_t pad,
                            const ModelConfig& model) {
  nlohmann::json j = parse_json(config_text, place);
  set_score_head(j, pad, model);
  return j.dump(2) + "\n";
}

std::string with_dtype(const std::string& config_text, const std::string& place, std::string_view dtype) {
  nlohmann::json j = parse_json(config_text, place);
  bool differs = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!j.contains(key) || j[key] == dtype) continue;
    j[key] = dtype;
    differs = true;
  }
  if (!j.contains("dtype") && !j.contains("torch_dtype")) {
    j["torch_dtype"] = dtype;
    differs = dtype != "float32";
  }
  return differs ? j.dump(2) + "\n" : config_text;
}

std::string with_vocabulary(const std::string& config_text, const std::string& place, int64_t tokens) {
  nlohmann::json j = parse_json(config_text, place);
  if (!j.contains("vocab_size") || j["vocab_size"] == tokens) return config_text;
  j["vocab_size"] = tokens;
  return j.dump(2) + "\n";
}

std::string with_untied_head(const std::string& config_text, const std::string& place) {
  nlohmann::json j = parse_json(config_text, place);
  j["tie_word_embeddings"] = false;
  return j.dump(2) + "\n";
}

std::string write_generation_config(const ModelConfig& model, const TokenIds& ids) {
  nlohmann::json j = {{"_from_model_config", true}};
  const auto known = [&](int64_t id) { return id >= 0 && id < model.vocab_size; };
  if (known(ids.bos)) j["bos_token_id"] = ids.bos;
  if (known(ids.pad)) j["pad_token_id"] = ids.pad;
  if (ids.eos.size() == 1 && known(ids.eos.front())) j["eos_token_id"] = ids.eos.front();
  if (ids.eos.size() > 1) j["eos_token_id"] = ids.eos;
  return j.dump(2) + "\n";
}

std::string with_eos_ids(const std::string& text, const std::string& place, const std::vector<int64_t>& model,
                         const std::vector<int64_t>& more) {
  const std::vector<int64_t> own = parse_generation_ids(text, place, {.eos = model}).eos;
  std::vector<int64_t> all = own;
  for (const int64_t id : more) {
    if (std::ranges::find(all, id) == all.end()) all.push_back(id);
  }
  if (all == own) return text;
  nlohmann::ordered_json j = nlohmann::ordered_json::parse(text);
  j["eos_token_id"] = all;
  if (all.size() == 1) j["eos_token_id"] = all.front();
  return j.dump(2) + "\n";
}

std::string without_quantization(const std::string& config_text, const std::string& place) {
  nlohmann::json config = parse_json(config_text, place);
  return config.erase("quantization_config") == 0 ? config_text : config.dump(2) + "\n";
}

}  // namespace llmtrain
