#include "hf/adapters/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "hf/config/config_keys.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_names = 100'000;
constexpr int64_t max_rank = int64_t{1} << 16;
constexpr double max_alpha = 1e6;

/// Variants of LoRA and further parameters, which these keys would add.
constexpr std::array<std::string_view, 14> unsupported_keys = {"alora_invocation_tokens",
                                                               "arrow_config",
                                                               "kasa_config",
                                                               "layer_replication",
                                                               "lora_bias",
                                                               "megatron_config",
                                                               "monteclora_config",
                                                               "trainable_token_indices",
                                                               "use_bdlora",
                                                               "use_qalora",
                                                               "velora_config",
                                                               "corda_config",
                                                               "lora_ga_config",
                                                               "loftq_config"};

/// Initialisations that change the base model, whose files the adapter then does not fit.
constexpr std::array<std::string_view, 5> changing_inits = {"pissa", "olora", "corda", "loftq", "lora_ga"};

constexpr std::string_view scoring_task = "SEQ_CLS", token_scoring_task = "TOKEN_CLS";
/// Modules that PEFT adds to modules_to_save for these tasks; the model has one of them.
constexpr std::array<std::string_view, 2> classifiers = {"classifier", "score"};

bool is_classifier(const std::string& module) { return std::ranges::find(classifiers, module) != classifiers.end(); }

/// PEFT ties what is named so, and no embedding of another name, such as wte.
bool names_table(const LoraConfig& lora) {
  constexpr std::array<std::string_view, 2> tables = {"embed_tokens", "lm_head"};
  const auto is_table = [&](const std::string& name) {
    return std::ranges::find(tables, last_part_of(name)) != tables.end();
  };
  if (std::ranges::any_of(lora.modules_to_save, is_table)) return true;
  const ModulePattern& targets = lora.target_modules;
  if (targets.regex.empty()) return std::ranges::any_of(targets.names, is_table);
  const ModuleMatcher matcher(targets);
  return std::ranges::any_of(tables, [&](std::string_view table) { return matcher.matches(table); });
}

bool is_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
}

class AdapterConfigReader {
 public:
  AdapterConfigReader(const nlohmann::json& object, const nlohmann::ordered_json& ordered, std::string place)
      : object_(object), ordered_(ordered), place_(std::move(place)), keys_(&object, "", problems_) {}

  AdapterConfig read() {
    check_method();
    AdapterConfig config;
    LoraConfig& lora = config.lora;
    lora.rank = keys_.integer("r", 8, 1, max_rank);
    lora.alpha = keys_.number("lora_alpha", 8);
    if (lora.alpha > max_alpha) {
      keys_.problem("lora_alpha", fmt::format("{}: it must be at most {}", lora.alpha, max_alpha));
    }
    read_dropout(lora);
    lora.target_modules = pattern("target_modules");
    config.target_parameters = keys_.texts("target_parameters", max_names);
    const bool targets = !lora.target_modules.empty() || !config.target_parameters.empty();
    if (!targets && problems_.empty()) keys_.problem("target_modules", "does not name a module");
    lora.exclude_modules = pattern("exclude_modules");
    read_bias(lora);
    lora.modules_to_save = keys_.texts("modules_to_save", max_names);
    if (task_ == scoring_task) config.head = ModelConfig::Head::score;
    if (task_ == token_scoring_task) config.head = ModelConfig::Head::token_score;
    if (config.scores()) std::erase_if(lora.modules_to_save, is_classifier);
    lora.layers_to_transform = layers();
    lora.layers_pattern = names("layers_pattern");
    lora.rank_pattern = numbers("rank_pattern", true);
    lora.alpha_pattern = numbers("alpha_pattern", false);
    lora.rslora = keys_.boolean("use_rslora", false);
    lora.dora = keys_.boolean("use_dora", false);
    read_init(lora);
    config.base = keys_.text("base_model_name_or_path", "");
    lora.ensure_weight_tying = keys_.boolean("ensure_weight_tying", false) && names_table(lora);
    keys_.no_effect(
        "auto_mapping eva_config fan_in_fan_out inference_mode megatron_core peft_version qalora_group_size "
        "revision runtime_config");
    check_others(config.warnings);
    if (problems_.empty()) return config;
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", place_, joined(problems_, "\n  ")));
  }

 private:
  void check_method() {
    const nlohmann::json* type = keys_.value("peft_type");
    if (type == nullptr || *type != "LORA") {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: peft_type: {}; only adapters of type LORA are supported", place_,
                                  type == nullptr ? "it is missing" : printable_value(*type)));
    }
    task_ = keys_.text("task_type", "CAUSAL_LM");
    if (task_ != "CAUSAL_LM" && task_ != scoring_task && task_ != token_scoring_task) {
      keys_.problem("task_type", fmt::format("{}; only adapters of language models (CAUSAL_LM), of reward models and "
                                             "models of labels ({}, {}) are supported",
                                             printable(task_), scoring_task, token_scoring_task));
    }
  }

  void check_others(std::vector<std::string>& warnings) {
    for (const std::string_view key : unsupported_keys) {
      const nlohmann::json* value = keys_.value(key);
      if (value != nullptr && !is_nothing(*value)) {
        keys_.problem(key, fmt::format("{}: it is not supported", printable_value(*value)));
      }
    }
    for (const auto& [key, value] : object_.items()) {
      if (is_nothing(value)) keys_.no_effect(key);
    }
    std::vector<std::string> unknown;
    keys_.list_unknown(unknown);
    if (unknown.empty()) return;
    warnings.push_back(fmt::format("{}: keys that PEFT does not have are ignored: {}", place_, joined(unknown, ", ")));
  }

  void read_dropout(LoraConfig& lora) {
    const nlohmann::json* value = keys_.value("lora_dropout");
    if (value == nullptr) return;
    const bool good = value->is_number() && *value >= 0 && *value < 1;
    if (!good)
      return keys_.problem("lora_dropout", "must be a number from 0 to 1 (excluded), not " + printable_value(*value));
    lora.dropout = value->get<double>();
  }

  void read_bias(LoraConfig& lora) {
    const std::string text = keys_.text("bias", "none");
    constexpr auto known = enum_names<LoraConfig::Bias>;
    const auto found = std::ranges::find(known, text);
    if (found == known.end())
      return keys_.problem("bias", fmt::format("{} must be {}", printable(text), joined(known)));
    lora.bias = static_cast<LoraConfig::Bias>(found - known.begin());
  }

  void read_init(LoraConfig& lora) {
    const nlohmann::json* value = keys_.value("init_lora_weights");
    if (value == nullptr || !value->is_string()) return;
    const auto text = value->get<std::string>();
    const auto changes = [&](std::string_view init) { return text.starts_with(init); };
    if (std::ranges::any_of(changing_inits, changes)) {
      return keys_.problem("init_lora_weights",
                           fmt::format("{}: it changes the base model; save the adapter with "
                                       "path_initial_model_for_weight_conversion, as an ordinary one",
                                       printable(text)));
    }
    // Matrices of one input have one A here, whose start has one width.
    if (text == "gaussian" && lora.rank_pattern.empty()) lora.init = AdapterShape::Init::gaussian;
  }

  /// A list of names, or one name.
  std::vector<std::string> names(std::string_view key) {
    const nlohmann::json* value = keys_.value(key);
    if (value != nullptr && value->is_string()) return {value->get<std::string>()};
    return keys_.texts(key, max_names);
  }

  /// A text is a regular expression, whatever its letters.
  ModulePattern pattern(std::string_view key) {
    const nlohmann::json* value = keys_.value(key);
    if (value == nullptr || !value->is_string()) {
      ModulePattern pattern{keys_.texts(key, max_names), {}};
      std::ranges::sort(pattern.names);
      return pattern;
    }
    const auto text = value->get<std::string>();
    if (names_all_linear(text)) return {{"all-linear"}, {}};
    try {
      ModuleMatcher({{}, text}).matches("");
      return {{}, text};
    } catch (const UserError& error) {
      keys_.problem(key, error.what());
      return {{}, "-"};
    }
  }

  std::vector<int64_t> layers() {
    const nlohmann::json* value = keys_.value("layers_to_transform");
    std::vector<int64_t> layers;
    if (value == nullptr) return layers;
    const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
    for (const nlohmann::json& layer : list) {
      if (!layer.is_number_integer() || layer < 0 || layer > 4095) {
        keys_.problem("layers_to_transform", "must be numbers of layers, not " + printable_value(layer));
        return {};
      }
      layers.push_back(layer.get<int64_t>());
    }
    std::ranges::sort(layers);
    return layers;
  }

  /// In the order of the file, since the first match counts.
  ModuleNumbers numbers(std::string_view key, bool ranks) {
    const nlohmann::json* value = keys_.value(key);
    ModuleNumbers numbers;
    if (value == nullptr) return numbers;
    if (!value->is_object()) {
      keys_.problem(key, "must be an object of names and numbers");
      return numbers;
    }
    for (const auto& [name, number] : ordered_.at(std::string(key)).items()) {
      const bool good = number.is_number() && number > 0 &&
                        (ranks ? number.is_number_integer() && number <= max_rank : number <= max_alpha);
      if (!good) {
        keys_.problem(key, fmt::format("{}: {} must be {}", printable(name), printable_value(number),
                                       ranks ? fmt::format("a rank from 1 to {}", max_rank)
                                             : fmt::format("a number above 0, at most {}", max_alpha)));
        continue;
      }
      numbers.emplace_back(name, number.get<double>());
    }
    return numbers;
  }

  const nlohmann::json& object_;
  const nlohmann::ordered_json& ordered_;
  std::string place_, task_;
  std::vector<std::string> problems_;
  ConfigKeys keys_;
};

/// It keeps the order of patterns, of which the first match counts.
using Json = nlohmann::ordered_json;

Json number_json(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<int64_t>(number);
  return number;
}

Json numbers_json(const ModuleNumbers& numbers) {
  Json object = Json::object();
  for (const auto& [name, number] : numbers) {
    if (!object.contains(name)) object[name] = number_json(number);
  }
  return object;
}

Json names_json(const std::vector<std::string>& names) { return names.empty() ? Json() : Json(names); }

Json pattern_json(const ModulePattern& pattern) {
  return pattern.regex.empty() ? names_json(pattern.names) : Json(pattern.regex);
}

std::string_view task_type_of(const ModelConfig& model) {
  if (!model.scores()) return "CAUSAL_LM";
  return model.head == ModelConfig::Head::token_score ? token_scoring_task : scoring_task;
}

/// PEFT trains embedding and head of a tied model as one only if it is told so, and stores what it is told.
std::vector<std::string> saved_modules(const LoraConfig& lora, const LoraPart& part, const ModelConfig& model) {
  std::vector<std::string> saved = lora.modules_to_save;
  if (model.scores()) {
    std::erase_if(saved, is_classifier);
    saved.insert(saved.end(), classifiers.begin(), classifiers.end());
  }
  if (!part.trains_tied_head) return saved;
  const DecoderNames names = nominal_shape(model).names;
  for (const std::string& name : {names.embedding, names.head}) {
    const bool there = std::ranges::any_of(saved, [&](const std::string& s) { return name.ends_with(s); });
    if (!there) saved.push_back(name);
  }
  return saved;
}

/// PEFT adapts experts only without dropout, which matters in training alone.
bool adapts_experts(const LoraPart& part, const ModelConfig& model) {
  if (!model.experts.exist()) return false;
  const DecoderNames names = nominal_shape(model).names;
  return std::ranges::any_of(std::array{names.expert_gate, names.expert_up, names.expert_down},
                             [&](const std::string& name) {
                               return std::ranges::find(part.targets, last_part_of(name)) != part.targets.end();
                             });
}

}  // namespace

AdapterConfig parse_adapter_config(std::string_view text, const std::string& place) {
  const nlohmann::json object = parse_json(text, place);
  if (!object.is_object()) throw UserError(ExitCode::bad_content, place + ": must be an object");
  const nlohmann::ordered_json ordered = parse_ordered_json(text, {}, max_names);
  return AdapterConfigReader(object, ordered, place).read();
}

std::string write_adapter_config(const AdapterConfig& config, const LoraPart& part, const ModelConfig& model) {
  const LoraConfig& lora = config.lora;
  Json object = {{"alpha_pattern", numbers_json(lora.alpha_pattern)},
                 {"auto_mapping", nullptr},
                 {"base_model_name_or_path", config.base.empty() ? Json() : Json(config.base)},
                 {"bias", name_of(lora.bias)},
                 {"ensure_weight_tying", part.trains_tied_head},
                 {"exclude_modules", pattern_json(lora.exclude_modules)},
                 {"fan_in_fan_out", nominal_shape(model).names.transposed_linear_layers},
                 {"inference_mode", true},
                 {"init_lora_weights", lora.init == AdapterShape::Init::gaussian ? Json("gaussian") : Json(true)},
                 {"layers_pattern", names_json(lora.layers_pattern)},
                 {"layers_to_transform", lora.layers_to_transform.empty() ? Json() : Json(lora.layers_to_transform)},
                 {"lora_alpha", number_json(lora.alpha)},
                 {"lora_bias", false},
                 {"lora_dropout", adapts_experts(part, model) ? 0.0 : lora.dropout},
                 {"modules_to_save", names_json(saved_modules(lora, part, model))},
                 {"peft_type", "LORA"},
                 {"r", lora.rank},
                 {"rank_pattern", numbers_json(lora.rank_pattern)},
                 {"revision", nullptr},
                 {"target_modules", part.targets},
                 {"task_type", task_type_of(model)},
                 {"use_dora", lora.dora},
                 {"use_rslora", lora.rslora}};
  return object.dump(2);
}

/// Removes the first occurrence.
static void remove(std::string& text, std::string_view part) {
  if (const size_t at = text.find(part); at != std::string::npos) text.erase(at, part.size());
}

std::string adapter_name_in_model(const std::string& stored) {
  if (!stored.starts_with(adapter_prefix) || stored.find(".original_module.") != std::string::npos) return {};
  std::string name = stored;
  if (name.find(".lora_") != std::string::npos) {
    remove(name, ".default");
    if (name.ends_with(".lora_magnitude_vector.weight")) remove(name, ".weight");
    return name;
  }
  for (const std::string_view wrapper : {".base_layer", ".modules_to_save", ".default"}) remove(name, wrapper);
  return name.substr(adapter_prefix.size());
}

}  // namespace llmtrain
