#include <fmt/format.h>

#include "core/files/json_reader.hpp"
#include "hf/config/config_families.hpp"
#include "hf/config/config_no_effect.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using Kind = RopeScaling::Kind;
constexpr size_t max_frequencies = 4096;
constexpr int64_t most_positions = int64_t{1} << 24;

Kind kind_of(ConfigKeys& rope, ModelConfig::Family family) {
  const std::string older = rope.text("type", "default");
  std::string name = rope.text("rope_type", older);
  const bool phi3 = family == ModelConfig::Family::phi3;
  if (phi3 && (name == "su" || name == "yarn")) name = "longrope";  // names in older files
  if (name == "default") return Kind::none;
  for (const Kind kind : {Kind::linear, Kind::dynamic, Kind::llama3, Kind::yarn, Kind::longrope}) {
    if (name != name_of(kind)) continue;
    if (phi3 && kind != Kind::longrope) rope.problem("rope_type", fmt::format("{}: phi3 supports only longrope", name));
    return kind;
  }
  rope.problem("rope_type",
               fmt::format("{} must be default, linear, dynamic, llama3, yarn or longrope", printable(name)));
  return Kind::none;
}

/// Reads an optional number.
double optional_number(ConfigKeys& keys, std::string_view key) { return keys.number(key, 0.0); }

void read_scaling(ConfigKeys& rope, ConfigKeys& config, ModelConfig& model) {
  RopeScaling& s = model.rope_scaling;
  s = {};
  s.kind = kind_of(rope, model.family);
  if (s.kind == Kind::none) return;
  s.factor = optional_number(rope, "factor");
  if (s.kind == Kind::linear || s.kind == Kind::dynamic) return;
  // It overrides rope_scaling, as in Transformers; without any the model is not extended (Phi-3: from 4096).
  constexpr int64_t most = int64_t{1} << 30;
  const int64_t inside = rope.integer("original_max_position_embeddings", model.max_seq_len, 1, most);
  const int64_t otherwise = model.family == ModelConfig::Family::phi3 ? 4096 : inside;
  s.original_max_position_embeddings = config.integer("original_max_position_embeddings", otherwise, 1, most);
  if (s.kind == Kind::llama3) {
    s.low_freq_factor = rope.number("low_freq_factor", {});
    s.high_freq_factor = rope.number("high_freq_factor", {});
    return;
  }
  s.attention_factor = optional_number(rope, "attention_factor");
  if (s.kind == Kind::yarn) {
    s.beta_fast = rope.number("beta_fast", 32);
    s.beta_slow = rope.number("beta_slow", 1);
    s.mscale = optional_number(rope, "mscale");
    s.mscale_all_dim = optional_number(rope, "mscale_all_dim");
    s.truncate = rope.boolean("truncate", true);
  } else {
    s.short_factor = rope.numbers("short_factor", max_frequencies);
    s.long_factor = rope.numbers("long_factor", max_frequencies);
  }
}

/// Phi-3 and GPT-NeoX turn a part of each head. The other families of Transformers read the key with a kind of scaling
/// only.
void read_partial_rotary_factor(ConfigKeys& rope, ConfigKeys& config, ModelConfig& model) {
  constexpr std::string_view key = "partial_rotary_factor";
  const double of_family = family_entry(model.family).hugging_face.partial_rotary;
  if (of_family == 0 && model.rope_scaling.kind == Kind::none) {
    rope.no_effect_as(key, 1);
    return config.no_effect_as(key, 1);
  }
  double otherwise = of_family == 0 ? 1 : of_family;
  if (model.family == ModelConfig::Family::gpt_neox) otherwise = config.number("rotary_pct", otherwise);
  const double partial = rope.number(key, config.number(key, otherwise));
  if (partial > 1 || (partial != 1 && of_family == 0)) {
    config.problem(key, "only phi3 and gpt_neox turn a part of each head, at most all of it");
  }
  model.partial_rotary_factor = partial;
}

/// The default of Transformers for GPT-OSS, where the file has neither key.
RopeScaling gpt_oss_scaling() {
  RopeScaling s;
  s.kind = Kind::yarn;
  s.factor = 32;
  s.original_max_position_embeddings = 4096;
  s.beta_fast = 32;
  s.beta_slow = 1;
  s.truncate = false;
  return s;
}

/// Gemma 3 has two ropes, in rope_parameters one beside the other: reads that of layers with the window, and returns
/// the object with that of the others.
const nlohmann::json* read_local_rope(ConfigKeys& keys, ModelConfig& model, const nlohmann::json* newer,
                                      std::vector<std::string>& problems) {
  const auto entry = [&](const char* kind) -> const nlohmann::json* {
    if (newer == nullptr || !newer->is_object()) return nullptr;
    const auto at = newer->find(kind);
    return at == newer->end() || at->is_null() ? nullptr : &*at;
  };
  ConfigKeys local(entry("sliding_attention"), "rope_parameters.sliding_attention.", problems);
  model.rope_local_theta = local.number("rope_theta", keys.number("rope_local_base_freq", 10000));
  local.only("rope_type", "default", "rope of layers with the window is not scaled");
  if (model.sliding_window == 0) model.rope_local_theta = 0;
  return entry("full_attention");
}

/// Without what only rope_parameters holds, and with the newer name of the kind.
nlohmann::json scaling_alone(nlohmann::json rope) {
  if (!rope.is_object()) return rope;
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) rope.erase(key);
  if (!rope.contains("rope_type") && rope.contains("type")) rope["rope_type"] = rope["type"];
  rope.erase("type");
  return rope;
}

}  // namespace

int64_t rotary_positions(ConfigKeys& keys, int64_t fallback) {
  constexpr const char* key = "max_position_embeddings";
  const nlohmann::json* found = keys.value(key);
  const bool beyond =
      found != nullptr && found->is_number() && found->get<double>() > static_cast<double>(most_positions);
  return beyond ? most_positions : keys.integer(key, fallback, 1, most_positions);
}

void read_rope(ConfigKeys& keys, ModelConfig& model, std::vector<std::string>& problems,
               std::vector<std::string>& unknown) {
  const nlohmann::json* older = keys.value("rope_scaling");
  const nlohmann::json* newer = keys.value("rope_parameters");
  const bool two_kinds = model.family == ModelConfig::Family::gemma3;
  if (two_kinds) newer = read_local_rope(keys, model, newer, problems);
  if (older != nullptr && newer != nullptr && scaling_alone(*older) != scaling_alone(*newer)) {
    keys.problem("rope_scaling", "contradicts rope_parameters; remove one of them");
  }
  ConfigKeys rope(newer != nullptr ? newer : older, newer != nullptr ? "rope_parameters." : "rope_scaling.", problems);
  const bool gpt_oss = model.family == ModelConfig::Family::gpt_oss;
  const double theta = family_entry(model.family).hugging_face.rope_theta;
  const char* older_theta = model.family == ModelConfig::Family::gpt_neox ? "rotary_emb_base" : "rope_theta";
  model.rope_theta = rope.number("rope_theta", keys.number(older_theta, theta));
  read_scaling(rope, keys, model);
  if (gpt_oss && older == nullptr && newer == nullptr) model.rope_scaling = gpt_oss_scaling();
  read_partial_rotary_factor(rope, keys, model);
  // In a file of Phi-3 it is there without scaling too.
  keys.no_effect("original_max_position_embeddings");
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    rope.only(kind, nullptr, "separate rope settings for a kind of layers are not supported");
  }
  rope.no_effect(no_effect_rope);
  rope.list_unknown(unknown);
  if (problems.empty()) {
    const std::string problem = model.rope_scaling.problem(model.rotary_dim() / 2);
    if (!problem.empty()) keys.problem("rope_scaling", problem);
  }
}

void write_rope(nlohmann::json& config, const ModelConfig& model) {
  const RopeScaling& s = model.rope_scaling;
  if (model.family == ModelConfig::Family::gpt_neox) {
    config["rotary_emb_base"] = model.rope_theta;
    config["rotary_pct"] = model.partial_rotary_factor;
  } else {
    config["rope_theta"] = model.rope_theta;
  }
  if (model.family == ModelConfig::Family::gemma3) {
    config["rope_local_base_freq"] = model.rope_local_theta > 0 ? model.rope_local_theta : 10000;
  }
  if (model.family == ModelConfig::Family::phi3) config["partial_rotary_factor"] = model.partial_rotary_factor;
  config["rope_scaling"] = nullptr;
  if (s.kind == Kind::none) return;
  nlohmann::json rope = nlohmann::json::object();
  rope["rope_type"] = name_of(s.kind);
  if (s.factor > 0) rope["factor"] = s.factor;
  const bool phi3 = model.family == ModelConfig::Family::phi3;
  if (s.original_max_position_embeddings > 0) {
    (phi3 ? config : rope)["original_max_position_embeddings"] = s.original_max_position_embeddings;
  }
  if (s.kind == Kind::llama3) {
    rope["low_freq_factor"] = s.low_freq_factor;
    rope["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  if (s.kind == Kind::yarn) {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    if (s.mscale > 0) rope["mscale"] = s.mscale;
    if (s.mscale_all_dim > 0) rope["mscale_all_dim"] = s.mscale_all_dim;
    if (!s.truncate) rope["truncate"] = false;
  }
  if (s.kind == Kind::longrope) {
    rope["short_factor"] = s.short_factor;
    rope["long_factor"] = s.long_factor;
  }
  config["rope_scaling"] = rope;
}

}  // namespace llmtrain
