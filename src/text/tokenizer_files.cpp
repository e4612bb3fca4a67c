#include "text/tokenizer_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"
#include "core/file_handle.hpp"
#include "core/folder_handle.hpp"
#include "core/json_reader.hpp"
#include "core/whole_file.hpp"
#include "text/added_token_files.hpp"
#include "text/base64.hpp"
#include "text/json_node.hpp"
#include "text/pipeline_tokenizer.hpp"
#include "text/plain_files.hpp"
#include "text/sentencepiece_model.hpp"
#include "text/tokenizer_json.hpp"
#include "text/tokenizer_readers.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t largest_config = int64_t{1} << 20;  ///< bytes
constexpr std::string_view main_json = "tokenizer.json", vocab_json = "vocab.json", merges_txt = "merges.txt",
                           added_json = "added_tokens.json";
constexpr std::array<std::string_view, 4> model_names = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                                                         "tokenizer_model"};
constexpr std::array<std::string_view, 4> config_names = {"tokenizer_config.json", "special_tokens_map.json",
                                                          "generation_config.json", "config.json"};

enum class Kind : uint8_t { json, gpt2, sentencepiece, tiktoken };

/// The files of a tokenizer: those that make it, then those that say more about it.
struct FileSet {
  std::string folder;  // for messages, ends with a slash; empty for one that was stored
  std::vector<TokenizerFile> files;

  const TokenizerFile* find(std::string_view name) const {
    const auto found = std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
    return found == files.end() ? nullptr : &*found;
  }
  std::string path(const TokenizerFile& file) const { return folder + file.name; }
};

Kind kind_of(const FileSet& set) {
  const TokenizerFile& first = set.files.front();
  if (first.name == vocab_json || set.find(merges_txt) != nullptr) return Kind::gpt2;
  const size_t start = first.bytes.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && (first.bytes[start] == '{' || first.name.ends_with(".json"))) return Kind::json;
  // A message begins with field 1, a list of pieces, or another; a file of ranks with base64 and a space.
  const std::string_view line = std::string_view(first.bytes).substr(0, first.bytes.find('\n'));
  const bool printable =
      std::all_of(line.begin(), line.end(), [](char c) { return (c >= ' ' && c < 0x7F) || c == '\r'; });
  if (!line.empty() && printable && line.find(' ') != std::string_view::npos) return Kind::tiktoken;
  return Kind::sentencepiece;
}

/// Tokens that files beside the main one add.
std::vector<AddedToken> tokens_beside(const FileSet& set) {
  std::vector<AddedToken> tokens;
  const auto read = [&](std::string_view name, const auto& reader) {
    const TokenizerFile* file = set.find(name);
    if (file == nullptr || !tokens.empty()) return;
    const nlohmann::json document = parse_json(file->bytes, set.path(*file));
    tokens = reader(JsonNode(document, set.path(*file)));
  };
  read(config_names[0], read_added_tokens_decoder);
  read(added_json, read_added_tokens_json);
  return tokens;
}

Gpt2Options gpt2_options(const FileSet& set) {
  Gpt2Options options;
  options.beside = tokens_beside(set);
  for (const std::string_view name : {config_names[0], config_names[1]}) {
    const TokenizerFile* file = set.find(name);
    if (file == nullptr) continue;
    const nlohmann::json document = parse_json(file->bytes, set.path(*file));
    const JsonNode root(document, set.path(*file));
    if (name == config_names[0]) {
      options.add_prefix_space = root.boolean_or("add_prefix_space", false);
      const std::string kind = root.text_or("tokenizer_class", "GPT2Tokenizer");
      if (kind != "GPT2Tokenizer" && kind != "GPT2TokenizerFast") {
        root.at("tokenizer_class")
            .refuse(
                fmt::format("{}: how it splits text is not in vocab.json and merges.txt, which are read as GPT-2's: "
                            "its tokenizer.json is needed",
                            printable(kind)));
      }
    }
    for (std::string& special : read_special_token_names(root)) options.special_names.push_back(std::move(special));
  }
  return options;
}

using FindToken = std::function<int32_t(std::string_view)>;

/// Ids with a meaning, from the files beside a tokenizer.
class SpecialIds {
 public:
  SpecialIds(const FileSet& set, const FindToken& find, int64_t id_limit)
      : set_(set), find_(find), id_limit_(id_limit) {}

  /// `name`: eos, bos or pad. -1 when no file names one.
  int32_t get(const std::string& name) const {
    for (const std::string_view config : {config_names[0], config_names[1]}) {
      const std::optional<int32_t> id = by_text(config, name + "_token");
      if (id) return *id;
    }
    for (const std::string_view config : {config_names[2], config_names[3]}) {
      const std::optional<int32_t> id = by_id(config, name + "_token_id");
      if (id) return *id;
    }
    return -1;
  }

 private:
  std::optional<int32_t> by_text(std::string_view config, const std::string& key) const {
    const TokenizerFile* file = set_.find(config);
    if (file == nullptr) return {};
    const nlohmann::json document = parse_json(file->bytes, set_.path(*file));
    const JsonNode root(document, set_.path(*file));
    if (!root.has(key)) return {};
    const JsonNode node = root.at(key);
    const std::string& token = node.value().is_object() ? node.at("content").text() : node.text();
    const int32_t id = find_(token);
    if (id < 0) node.refuse(fmt::format("the token \"{}\" is not in the vocabulary", token.substr(0, 60)));
    return id;
  }

  std::optional<int32_t> by_id(std::string_view config, const std::string& key) const {
    const TokenizerFile* file = set_.find(config);
    if (file == nullptr) return {};
    const nlohmann::json document = parse_json(file->bytes, set_.path(*file));
    const JsonNode root(document, set_.path(*file));
    if (!root.has(key)) return {};
    const JsonNode node = root.at(key);
    if (node.value().is_array() && node.size() == 0) return {};
    const JsonNode first = node.value().is_array() ? node.at(size_t{0}) : node;
    if (first.value().is_number_integer() && first.value().get<int64_t>() < 0) return {};
    return static_cast<int32_t>(first.integer(0, id_limit_ - 1));
  }

  const FileSet& set_;
  const FindToken& find_;
  int64_t id_limit_;
};

int32_t usual_eos(const FindToken& find) {
  for (const std::string_view name : {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "<|im_end|>",
                                      "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "[SEP]"}) {
    const int32_t id = find(name);
    if (id >= 0) return id;
  }
  return -1;
}
int32_t usual_bos(const FindToken& find) {
  for (const std::string_view name : {"<|begin_of_text|>", "<s>", "<bos>", "[CLS]"}) {
    const int32_t id = find(name);
    if (id >= 0) return id;
  }
  return -1;
}

/// `stored`: with ids that were found before.
std::unique_ptr<Tokenizer> build(FileSet set, const std::string& eos_token, const TokenizerOrigin* stored) {
  const Kind kind = kind_of(set);
  const std::string name = set.path(set.files.front());
  TokenizerParts parts;
  SentencePieceModel model;
  FindToken find;
  int64_t id_limit = 0;
  if (kind == Kind::sentencepiece) {
    model = read_sentencepiece_model(set.files.front().bytes, name);
    id_limit = static_cast<int64_t>(model.pieces.size());
    find = [&model](std::string_view token) {
      for (size_t id = 0; id < model.pieces.size(); ++id) {
        if (model.pieces[id].text == token) return static_cast<int32_t>(id);
      }
      return -1;
    };
  } else {
    if (kind == Kind::json) {
      parts = read_tokenizer_json(set.files.front().bytes, name);
    } else if (kind == Kind::tiktoken) {
      parts = read_tiktoken_file(set.files.front().bytes, name);
    } else {
      const TokenizerFile* merges = set.find(merges_txt);
      if (merges == nullptr) throw UserError(ExitCode::missing_input, set.folder + "merges.txt: there is no such file");
      parts = read_gpt2_files(set.files.front().bytes, merges->bytes, name, set.path(*merges), gpt2_options(set));
    }
    id_limit = parts.model->vocabulary().id_limit();
    for (const AddedToken& token : parts.added.tokens()) id_limit = std::max(id_limit, int64_t{token.id} + 1);
    find = [&parts](std::string_view token) {
      for (const AddedToken& added : parts.added.tokens()) {
        if (added.content == token) return added.id;
      }
      return parts.model->vocabulary().find(token);
    };
  }

  if (kind == Kind::sentencepiece || kind == Kind::tiktoken) {
    for (const AddedToken& token : tokens_beside(set)) {
      if (find(token.content) == token.id) continue;
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: a file beside it adds the token \"{}\" with the id {}, which it does not have: "
                                  "such tokens are read from a tokenizer.json",
                                  name, token.content.substr(0, 60), token.id));
    }
  }

  TokenizerOrigin origin;
  if (stored != nullptr) {
    origin = *stored;
    for (const int32_t id : {origin.eos, origin.bos, origin.pad}) {
      if (id < -1 || id >= id_limit)
        throw UserError(ExitCode::bad_content, "stored tokenizer: an id beyond its vocabulary");
    }
  } else {
    const SpecialIds special(set, find, id_limit);
    origin.eos = special.get("eos");
    origin.bos = special.get("bos");
    origin.pad = special.get("pad");
    if (kind == Kind::sentencepiece) {
      if (origin.eos < 0) origin.eos = find(model.eos_piece);
      if (origin.bos < 0) origin.bos = find(model.bos_piece);
      if (origin.pad < 0) origin.pad = find(model.pad_piece);
    }
    if (origin.eos < 0) origin.eos = usual_eos(find);
    if (origin.bos < 0) origin.bos = usual_bos(find);
    if (!eos_token.empty()) {
      origin.eos = find(eos_token);
      if (origin.eos < 0) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: the token \"{}\" is not in the vocabulary", name, eos_token));
      }
    }
  }
  origin.files = std::move(set.files);
  if (kind == Kind::sentencepiece) return make_sentencepiece_tokenizer(std::move(model), std::move(origin));
  return make_pipeline_tokenizer(std::move(parts), std::move(origin));
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

void add_file(const std::string& folder, std::string_view name, int64_t most_bytes, FileSet& set) {
  const std::string path = folder + std::string(name);
  std::error_code ignored;
  if (fs::exists(path, ignored) && !is_file(path)) throw UserError(ExitCode::missing_input, path + ": not a file");
  set.files.push_back({std::string(name), FileHandle::open_to_read(path).read_text(most_bytes)});
}

/// The file or files that make the tokenizer, first the one that tells its kind.
void find_main_files(const std::string& path, FileSet& set) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const fs::path file(path);
    set.folder = file.has_parent_path() ? file.parent_path().string() + "/" : std::string();
    const std::string name = file.filename().string();
    if (name == merges_txt) {
      add_file(set.folder, vocab_json, largest_tokenizer_json, set);
    } else {
      add_file(set.folder, name, largest_tokenizer_json, set);
    }
    if (set.files.front().name == vocab_json) add_file(set.folder, merges_txt, largest_tokenizer_json, set);
    return;
  }
  set.folder = path.ends_with('/') ? path : path + "/";
  if (is_file(set.folder + std::string(main_json))) {
    add_file(set.folder, main_json, largest_tokenizer_json, set);
    return;
  }
  for (const std::string_view name : model_names) {
    if (!is_file(set.folder + std::string(name))) continue;
    add_file(set.folder, name, largest_sentencepiece_file, set);
    return;
  }
  if (is_file(set.folder + std::string(vocab_json))) {
    add_file(set.folder, vocab_json, largest_tokenizer_json, set);
    add_file(set.folder, merges_txt, largest_tokenizer_json, set);
    return;
  }
  throw UserError(ExitCode::missing_input,
                  path + ": the folder holds no tokenizer.json, tokenizer.model, or vocab.json and merges.txt");
}

}  // namespace

bool is_tokenizer_path(std::string_view name) {
  std::error_code ignored;
  return name.find('/') != std::string_view::npos || name.find('.') != std::string_view::npos ||
         fs::exists(fs::path(name), ignored);
}

namespace {

/// Nothing when the folder holds none. Its ids are settled.
std::unique_ptr<Tokenizer> load_stored_tokenizer(const std::string& path, const std::string& eos_token) {
  const std::string file = path + "/" + stored_tokenizer_name;
  for (const std::string_view name : {main_json, vocab_json, model_names[0], model_names[1], model_names[2]}) {
    if (is_file(path + "/" + std::string(name))) return nullptr;
  }
  if (!is_file(file)) return nullptr;
  std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer_from(FileHandle::open_to_read(file).read_text(most_stored_tokenizer_bytes));
  if (eos_token.empty() || (tokenizer->eos_id() >= 0 && tokenizer->token(tokenizer->eos_id()) == eos_token)) {
    return tokenizer;
  }
  throw UserError(ExitCode::bad_content, fmt::format("{}: the run that it is of ended texts with another token than "
                                                     "\"{}\"",
                                                     file, eos_token.substr(0, 60)));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const std::string& eos_token) {
  if (auto stored = load_stored_tokenizer(path, eos_token)) return stored;
  FileSet set;
  find_main_files(path, set);
  for (const std::string_view name : config_names) {
    if (is_file(set.folder + std::string(name))) add_file(set.folder, name, largest_config, set);
  }
  const bool complete = kind_of(set) == Kind::json;  // with all that is added
  if (!complete && is_file(set.folder + std::string(added_json))) add_file(set.folder, added_json, largest_config, set);
  return build(std::move(set), eos_token, nullptr);
}

std::string serialize_origin(const TokenizerOrigin& origin) {
  nlohmann::ordered_json object = {{"type", "files"}, {"eos", origin.eos}, {"bos", origin.bos}, {"pad", origin.pad}};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenizerFile& file : origin.files) {
    // Weights' shape is not a tokenizer's matter: what was of use in it is in the ids.
    if (file.name == config_names[2] || file.name == config_names[3]) continue;
    list.push_back({{"name", file.name}, {"base64", to_base64(file.bytes)}});
  }
  object["files"] = std::move(list);
  return object.dump();
}

namespace {

/// Files beside the main one, which save_tokenizer() writes under their names.
bool is_file_beside(std::string_view name) {
  return name == merges_txt || name == added_json || std::ranges::find(config_names, name) != config_names.end();
}

}  // namespace

std::unique_ptr<Tokenizer> load_serialized_tokenizer(std::string_view serialized) {
  const std::string name = "stored tokenizer";
  constexpr JsonLimits limits{.bytes = largest_tokenizer_json / 3 * 4 + (int64_t{8} << 20), .values = 1000};
  const nlohmann::json document = parse_json(serialized, name, limits);
  const JsonNode root(document, name);
  root.allow({"type", "eos", "bos", "pad", "files"});
  const auto id = [&](std::string_view key) { return static_cast<int32_t>(root.at(key).integer(-1, INT32_MAX - 1)); };
  TokenizerOrigin origin{id("eos"), id("bos"), id("pad"), {}};
  FileSet set;
  const JsonNode list = root.at("files");
  for (size_t i = 0; i < list.array().size(); ++i) {
    TokenizerFile file{list.at(i).at("name").text(), {}};
    check_file_name(file.name, name);
    if (i > 0 && !is_file_beside(file.name)) list.at(i).refuse("is no file of a tokenizer");
    if (!from_base64(list.at(i).at("base64").text(), file.bytes)) list.at(i).refuse("is not base64");
    set.files.push_back(std::move(file));
  }
  if (set.files.empty()) list.refuse("is empty");
  return build(std::move(set), "", &origin);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  std::vector<TokenizerFile> files = tokenizer.files();
  if (files.empty()) files = plain_tokenizer_files(tokenizer);
  // A file that was named by itself may have any name; in a folder it is looked for under the usual one.
  TokenizerFile& main = files.front();
  const bool usual = main.name == vocab_json || std::ranges::find(model_names, main.name) != model_names.end();
  if (!usual) main.name = main.bytes.starts_with('{') ? main_json : model_names[0];
  std::erase_if(files,
                [](const TokenizerFile& file) { return file.name == config_names[2] || file.name == config_names[3]; });
  if (std::none_of(files.begin(), files.end(), [](const auto& file) { return file.name == config_names[0]; })) {
    nlohmann::ordered_json config = nlohmann::ordered_json::object();
    if (files.front().name == main_json) config["tokenizer_class"] = "PreTrainedTokenizerFast";
    if (tokenizer.kind() == "sentencepiece bpe") {  // else Transformers takes it for something without spaces and BOS
      std::vector<int32_t> around;
      tokenizer.add_special_tokens(around, nullptr);
      config["tokenizer_class"] = "LlamaTokenizer";
      config["add_bos_token"] = !around.empty() && around.front() == tokenizer.bos_id();
      config["add_eos_token"] = false;
      config["legacy"] = true;
      if (tokenizer.token(0) == "<unk>") config["unk_token"] = "<unk>";
    }
    const auto name = [&](const char* key, int32_t id) {
      if (id >= 0) config[key] = tokenizer.token(id);
    };
    name("bos_token", tokenizer.bos_id());
    name("eos_token", tokenizer.eos_id());
    name("pad_token", tokenizer.pad_id());
    files.push_back({std::string(config_names[0]), config.dump(2) + "\n"});
  }
  for (const TokenizerFile& file : files) {
    write_whole_file(folder + "/" + file.name, file.bytes);
  }
}

void require_eos(const Tokenizer& tokenizer, const std::string& path) {
  if (tokenizer.eos_id() >= 0) return;
  throw UserError(ExitCode::bad_content,
                  path +
                      ": no file says which token ends a text (eos_token in tokenizer_config.json): name it by "
                      "data.eos_token (--eos-token)");
}

}  // namespace llmtrain
