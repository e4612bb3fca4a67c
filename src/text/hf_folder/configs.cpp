#include "text/hf_folder/configs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

namespace names = tokenizer_names;
using Json = nlohmann::json;

/// Calls see(root) for a file that exists.
template <class See>
void read_config(const TokenizerFileSet& set, std::string_view name, const See& see) {
  const TokenizerFile* file = set.find(name);
  if (file == nullptr) return;
  const Json document = parse_json(file->bytes, set.path(*file));
  see(JsonNode(document, set.path(*file)));
}

/// With `lenient` a token that the vocabulary lacks counts as not named.
std::optional<int32_t> id_by_text(const JsonNode& root, const std::string& key, const FindToken& find, bool lenient) {
  if (!root.has(key)) return {};
  const JsonNode node = root.at(key);
  const std::string& token = node.value().is_object() ? node.at("content").text() : node.text();
  const int32_t id = find(token);
  if (id < 0 && lenient) return {};
  if (id < 0) node.refuse(fmt::format("the token \"{}\" is not in the vocabulary", token.substr(0, 60)));
  return id;
}

std::optional<int32_t> id_by_number(const JsonNode& root, const std::string& key, int64_t id_limit) {
  if (!root.has(key)) return {};
  const JsonNode node = root.at(key);
  if (node.value().is_array() && node.size() == 0) return {};
  const JsonNode first = node.value().is_array() ? node.at(size_t{0}) : node;
  if (first.value().is_number_integer() && first.value().get<int64_t>() < 0) return {};
  return static_cast<int32_t>(first.integer_between(0, id_limit - 1));
}

bool is_byte_level(const TokenizerFileSet& set) {
  const TokenizerFile* json = set.find(names::json);
  return json != nullptr && json->bytes.find(byte_level_step) != std::string::npos;
}

}  // namespace

TokenizerFolder::TokenizerFolder(const TokenizerFileSet& set, const std::string& stored_class) : set_(set) {
  read_config(set, names::config, [&](const JsonNode& root) {
    if (root.has("add_prefix_space")) add_prefix_space_ = root.at("add_prefix_space").boolean();
    if (root.has("legacy")) legacy_ = root.at("legacy").boolean();
    splits_special_ = root.boolean_or("split_special_tokens", false);
  });
  find_class(stored_class);
  class_ = &find_tokenizer_class(class_name_);
}

void TokenizerFolder::find_class(const std::string& stored_class) {
  NamedClasses named;
  named.is_byte_level = is_byte_level(set_);
  read_config(set_, names::config, [&](const JsonNode& root) {
    named.tokenizer_class = root.text_or("tokenizer_class", "");
    named.has_code = root.has("auto_map") &&
                     (root.at("auto_map").value().is_array() || root.at("auto_map").value().contains("AutoTokenizer"));
  });
  const std::string by_itself = choose_tokenizer_class(named);
  read_config(set_, names::of_model, [&](const JsonNode& root) {
    named.model_type = root.text_or("model_type", "");
    named.model_class = root.text_or("tokenizer_class", "");
  });
  class_name_ = stored_class.empty() ? choose_tokenizer_class(named) : stored_class;
  if (class_name_ == names::keeping_class) class_name_.clear();
  const bool alone = !set_.is_folder && format_of(set_) == TokenizerFormat::json;
  if (alone && !class_name_.empty()) {
    warnings_.push_back(fmt::format("{}: this file is read by itself; its folder would be read as a {}",
                                    set_.path(set_.files.front()), class_name_));
    class_name_.clear();
  }
  class_is_stored_ = class_name_ != by_itself;
}

void TokenizerFolder::put_class(TokenizerOrigin& origin) const {
  origin.tokenizer_class = class_name_.empty() ? names::keeping_class : class_name_;
  origin.class_is_stored = class_is_stored_;
}

void TokenizerFolder::rebuild(Json& document) {
  const std::string where = set_.path(set_.files.front());
  if (class_->steps == TokenizerClass::Steps::kept) return;
  if (class_->steps == TokenizerClass::Steps::unknown) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: the tokenizer class {} of this folder is not supported. To use this file as it is, give "
                    "its path instead of the folder, or set tokenizer_class to \"{}\" in "
                    "tokenizer_config.json",
                    where, class_name_, names::keeping_class));
  }
  Json settings = Json::object();
  const Json none = Json::object();
  settings = read_class_settings(*class_, JsonNode(none, where));
  read_config(set_, names::config, [&](const JsonNode& root) { settings = read_class_settings(*class_, root); });
  const FolderTokens tokens = read_folder_tokens(set_, *class_, {});
  const FolderTokens::Named* unk = tokens.find("unk_token");
  settings["unk_token"] = unk == nullptr ? Json() : Json(unk->token.content);
  changed_ = rebuild_steps(*class_, settings, where, document);
  trims_ = class_->around.trims && settings.value("trim_offsets", true);
}

void TokenizerFolder::set_post_processor(PostProcessor& post) {
  if (class_->steps == TokenizerClass::Steps::own && class_->around.own) {
    const PostProcessor old = std::exchange(post, PostProcessor{});
    const auto put = [&](std::string_view key, std::vector<int32_t>& ids) {
      if (key.empty()) return;
      const FolderTokens::Named* named = tokens_.find(key);
      if (named == nullptr) {
        throw UserError(ExitCode::bad_content, fmt::format("{}: a {} needs a {}, which is missing",
                                                           set_.path(set_.files.front()), class_name_, key));
      }
      ids.push_back(ids_of_added_.at(named->token.content));
    };
    put(class_->around.before, post.before);
    put(class_->around.after, post.after);
    post.trim_offsets = trims_;
    post.add_prefix_space = trims_ && add_prefix_space_.value_or(false);
    if (post.before != old.before || post.after != old.after) changed_.emplace_back("post_processor");
  }
  if (changed_.empty()) return;
  warnings_.push_back(
      fmt::format("{}: as in Transformers 5, the class {} determines the {}, not this file; earlier versions "
                  "may use the file and give other ids",
                  set_.path(set_.files.front()), class_name_, fmt::join(changed_, ", ")));
}

bool TokenizerFolder::gpt2_prefix_space() const {
  read_config(set_, names::config, [&](const JsonNode& root) {
    const std::string kind = root.text_or("tokenizer_class", "GPT2Tokenizer");
    if (kind == "GPT2Tokenizer" || kind == "GPT2TokenizerFast") return;
    root.at("tokenizer_class")
        .refuse(fmt::format("{}: vocab.json and merges.txt do not record how it splits text and are read as GPT-2's; "
                            "its tokenizer.json is needed",
                            printable(kind)));
  });
  if (!class_name_.empty() && class_name_ != "GPT2Tokenizer") {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: the model_type in config.json has a {}, but vocab.json and merges.txt are read as "
                                "GPT-2's; its tokenizer.json is needed",
                                set_.path(set_.files.front()), class_name_));
  }
  return add_prefix_space_.value_or(false);
}

bool TokenizerFolder::prefixes_every_segment() const { return legacy_.value_or(class_->name != "LlamaTokenizer"); }

std::vector<AddedToken> TokenizerFolder::add_tokens(std::vector<AddedToken> added, const FindToken& in_vocabulary,
                                                    int64_t size) {
  takes_tokens_ = true;
  tokens_ = read_folder_tokens(set_, *class_, added);
  if (class_->steps == TokenizerClass::Steps::own) added.clear();  // those that count are among tokens_
  add_folder_tokens(tokens_, in_vocabulary, size, added, warnings_);
  for (AddedToken& token : added) {
    if (class_->around.own) ids_of_added_[token.content] = token.id;
    token.is_split = splits_special_ && token.special;
  }
  return added;
}

int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    if (const int32_t id = find(text); id >= 0) return id;
  }
  return -1;
}

TokenizerOrigin TokenizerFolder::named_ids(const FindToken& find, int64_t id_limit) const {
  const auto id_of = [&](const std::string& name) {
    const FolderTokens::Named* named = tokens_.find(name + "_token");
    if (named != nullptr && !named->by_class) return find(named->token.content);
    std::optional<int32_t> id;
    for (const std::string_view file : names::with_texts) {
      const auto see = [&](const JsonNode& root) { id = id_by_text(root, name + "_token", find, takes_tokens_); };
      if (!id) read_config(set_, file, see);
    }
    for (const std::string_view file : names::with_ids) {
      if (!id) {
        read_config(set_, file, [&](const JsonNode& root) { id = id_by_number(root, name + "_token_id", id_limit); });
      }
    }
    return id.value_or(named != nullptr ? find(named->token.content) : -1);
  };
  const int32_t eos = id_of("eos"), bos = id_of("bos"), pad = id_of("pad");
  return {eos, bos, pad, {}, warnings_};
}

bool TokenizerFolder::names_no(const std::string& key) const {
  bool is_null = false;
  read_config(set_, names::config, [&](const JsonNode& root) {
    is_null = root.object().value().contains(key) && root.value()[key].is_null();
  });
  return is_null;
}

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
