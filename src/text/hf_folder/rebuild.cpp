#include "text/hf_folder/rebuild.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace llmtrain {
namespace {

using Json = nlohmann::json;

/// A step of the table with its settings filled in.
Json fill_in(const Json& step, const Json& settings) {
  if (step.is_string()) {
    const std::string& text = step.get_ref<const std::string&>();
    return text.starts_with('$') ? settings.at(text.substr(1)) : step;
  }
  if (step.is_object() && step.contains("$if")) {
    const bool yes = settings.at(step["$if"].get<std::string>()).get<bool>();
    return fill_in(step[yes ? "then" : "else"], settings);
  }
  if (!step.is_structured()) return step;
  Json filled = step.is_array() ? Json::array() : Json::object();
  for (const auto& [key, value] : step.items()) {
    Json part = fill_in(value, settings);
    if (step.is_object()) {
      filled[key] = std::move(part);
    } else if (!part.is_null()) {
      filled.push_back(std::move(part));
    }
  }
  return filled;
}

/// Returns true if a step without the key gives the same ids and texts.
bool says_nothing(const std::string& key, const Json& value, bool decoder) {
  constexpr std::array<std::string_view, 6> usually_false = {"fuse_unk", "byte_fallback", "ignore_merges",
                                                             "invert",   "dropout",       "individual_digits"};
  if (value.is_null() || value == "" || key == "trim_offsets") return true;
  if (std::ranges::find(usually_false, key) != usually_false.end()) return value == false || value == 0;
  if (key == "use_regex" || key == "split") return decoder || value == true;
  if (key == "add_prefix_space") return decoder || value == true;
  return key == "prepend_scheme" && value == "always";
}

/// Removes keys without an effect, so that equivalent steps are equal.
Json essence(const Json& step, bool decoder) {
  if (!step.is_structured()) return step;
  if (step.is_array()) {
    Json list = Json::array();
    for (const Json& one : step) list.push_back(essence(one, decoder));
    return list;
  }
  Json out = Json::object();
  for (const auto& [key, value] : step.items()) {
    if (!says_nothing(key, value, decoder)) out[key] = essence(value, decoder);
  }
  const bool sequence = out.size() == 2 && out.contains("type") && out["type"] == "Sequence";
  for (const auto& [key, value] : out.items()) {
    if (sequence && value.is_array() && value.size() == 1) return Json(value[0]);
  }
  return out;
}

std::string type_of_model(const Json& model) {
  if (model.contains("type") && model["type"].is_string()) return model["type"];
  return model.contains("merges") ? "BPE" : "WordPiece";  // older files have no type
}

bool replace(Json& place, Json step, bool decoder) {
  const bool differs = essence(place, decoder) != essence(step, decoder);
  place = std::move(step);
  return differs;
}

}  // namespace

Json read_class_settings(const TokenizerClass& kind, const JsonNode& config) {
  Json settings = Json::parse(kind.settings);
  for (const auto& [key, value] : settings.items()) {
    if (config.has(key)) settings[key] = config.at(key).boolean();
  }
  return settings;
}

std::vector<std::string> rebuild_steps(const TokenizerClass& kind, const Json& settings, const std::string& where,
                                       Json& document) {
  std::vector<std::string> changed;
  if (!document.is_object() || !document.contains("model") || !document["model"].is_object()) return changed;
  Json& old = document["model"];
  Json model = fill_in(Json::parse(kind.model), settings);
  const std::string type = type_of_model(old);
  if (model["type"].get<std::string>() != type) {
    JsonNode(old, where + ".model")
        .refuse(fmt::format("it is a {}, but the folder's tokenizer class {} makes a {} of it: name a class that "
                            "fits, as tokenizer_class in tokenizer_config.json (PreTrainedTokenizerFast keeps what "
                            "tokenizer.json says)",
                            type, kind.name, model["type"].get<std::string>()));
  }
  Json contents = Json::object();
  for (const char* key : {"vocab", "merges"}) {
    if (old.contains(key)) contents[key] = std::move(old[key]);
    old.erase(key);
  }
  if (type == "BPE" && !contents.contains("merges")) contents["merges"] = Json::array();
  old["type"] = type;
  if (replace(old, std::move(model), false)) changed.emplace_back("flags of the model");
  old.update(contents);
  for (const auto& [key, text] :
       {std::pair{"normalizer", kind.normalizer}, {"pre_tokenizer", kind.pre_tokenizer}, {"decoder", kind.decoder}}) {
    const bool decoder = std::string_view(key) == "decoder";
    if (replace(document[key], fill_in(Json::parse(text), settings), decoder)) changed.emplace_back(key);
  }
  return changed;
}

}  // namespace llmtrain
