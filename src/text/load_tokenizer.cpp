#include "text/load_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/folder_handle.hpp"
#include "core/files/json_node.hpp"
#include "core/files/json_reader.hpp"
#include "core/files/whole_file.hpp"
#include "text/hf_folder/added_tokens.hpp"
#include "text/hf_folder/base64.hpp"
#include "text/hf_folder/configs.hpp"
#include "text/hf_folder/file_set.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/hf_folder/json_out.hpp"
#include "text/hf_folder/vocabulary_files.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
namespace names = tokenizer_names;

using Format = TokenizerFormat;

/// Result of reading the main files.
using TokenizerContent = std::variant<SentencePieceModel, TokenizerSteps>;

SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& name, TokenizerFolder& folder) {
  SentencePieceModel model = read_sentencepiece_model(bytes, name);
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < model.pieces.size(); ++i) ids.emplace(model.pieces[i].text, static_cast<int32_t>(i));
  const auto find = [&](std::string_view text) {
    const auto found = ids.find(text);
    return found == ids.end() ? -1 : found->second;
  };
  model.added = folder.add_tokens({}, find, static_cast<int64_t>(model.pieces.size()));
  model.prefixes_every_segment = folder.prefixes_every_segment();
  return model;
}

TokenizerContent read_main_files(const TokenizerFileSet& set, TokenizerFolder& folder) {
  const TokenizerFile& first = set.files.front();
  const std::string name = set.path(first);
  const AddTokens add = [&](std::vector<AddedToken> added, const Vocabulary& vocabulary) {
    return folder.add_tokens(
        std::move(added), [&](std::string_view text) { return vocabulary.find(text); }, vocabulary.size());
  };
  switch (format_of(set)) {
    case Format::json:
      return read_tokenizer_json(first.bytes, name,
                                 {[&](nlohmann::json& document) { folder.rebuild(document); }, add,
                                  [&](PostProcessor& post) { folder.set_post_processor(post); }});
    case Format::gpt2: {
      const TokenizerFile* merges = set.find(names::merges);
      if (merges == nullptr) throw UserError(ExitCode::missing_input, set.folder + "merges.txt: there is no such file");
      return read_gpt2_files(first.bytes, merges->bytes, name, set.path(*merges), folder.gpt2_prefix_space(), add);
    }
    case Format::sentencepiece:
      return read_sentencepiece(first.bytes, name, folder);
    case Format::tiktoken:
      return read_tiktoken_file(first.bytes, name);
  }
  throw Error("the tokenizer has no format");
}

int32_t find_token(const SentencePieceModel& model, std::string_view text) {
  const auto added = std::ranges::find(model.added, text, &AddedToken::content);
  if (added != model.added.end()) return added->id;
  const auto found = std::ranges::find(model.pieces, text, &SentencePieceModel::Piece::text);
  return found == model.pieces.end() ? -1 : static_cast<int32_t>(found - model.pieces.begin());
}
int32_t find_token(const TokenizerSteps& steps, std::string_view text) {
  const auto& added = steps.added.tokens();
  const auto found = std::ranges::find(added, text, &AddedToken::content);
  return found == added.end() ? steps.model->vocabulary().find(text) : found->id;
}

int64_t id_limit(int64_t limit, const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) limit = std::max(limit, int64_t{token.id} + 1);
  return limit;
}
int64_t id_limit(const SentencePieceModel& model) {
  return id_limit(static_cast<int64_t>(model.pieces.size()), model.added);
}
int64_t id_limit(const TokenizerSteps& steps) {
  return id_limit(steps.model->vocabulary().id_limit(), steps.added.tokens());
}

/// A file of tiktoken ranks cannot take tokens from the files next to it.
void refuse_more_tokens(const TokenizerFileSet& set, const FindToken& find) {
  if (format_of(set) != Format::tiktoken) return;
  for (const auto& [id, token] : read_folder_tokens(set, find_tokenizer_class(""), {}).by_id) {
    if (find(token.content) == id) continue;
    throw UserError(
        ExitCode::bad_content,
        fmt::format(
            "{}: another file of the folder adds the token \"{}\" with the id {}, which the vocabulary does not have; "
            "such tokens need a tokenizer.json",
            set.path(set.files.front()), token.content.substr(0, 60), id));
  }
}

/// Returns the tokens that the other files name, otherwise the usual ones.
TokenizerOrigin find_ids(const TokenizerFolder& folder, const TokenizerContent& content, const FindToken& find,
                         int64_t limit) {
  TokenizerOrigin origin = folder.named_ids(find, limit);
  if (const auto* model = std::get_if<SentencePieceModel>(&content)) {
    if (origin.eos < 0) origin.eos = find(model->eos_piece);
    if (origin.bos < 0) origin.bos = find(model->bos_piece);
    if (origin.pad < 0) origin.pad = find(model->pad_piece);
  }
  if (origin.eos < 0) {
    origin.eos = first_token(find, {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "<|im_end|>",
                                    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "[SEP]"});
  }
  if (origin.bos < 0 && !folder.names_no("bos_token")) {
    origin.bos = first_token(find, {"<|begin_of_text|>", "<s>", "<bos>", "[CLS]"});
  }
  return origin;
}

/// Builds a tokenizer; `stored` has ids that were determined before, or is null.
std::unique_ptr<Tokenizer> build(TokenizerFileSet set, const std::string& eos_token, const TokenizerOrigin* stored) {
  TokenizerFolder folder(set, stored != nullptr ? stored->tokenizer_class : "");
  TokenizerContent content = read_main_files(set, folder);
  const FindToken find = [&content](std::string_view text) {
    return std::visit([&](const auto& c) { return find_token(c, text); }, content);
  };
  const int64_t limit = std::visit([](const auto& c) { return id_limit(c); }, content);
  refuse_more_tokens(set, find);
  TokenizerOrigin origin = stored != nullptr ? *stored : find_ids(folder, content, find, limit);
  for (const int32_t id : {origin.eos, origin.bos, origin.pad}) {
    if (id >= limit) throw UserError(ExitCode::bad_content, "stored tokenizer: an id is outside its vocabulary");
  }
  if (!eos_token.empty()) {
    origin.eos = find(eos_token);
    if (origin.eos < 0) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: the token \"{}\" is not in the vocabulary",
                                                         set.path(set.files.front()), eos_token));
    }
  }
  folder.put_class(origin);
  origin.files = std::move(set.files);
  if (auto* model = std::get_if<SentencePieceModel>(&content)) {
    return make_sentencepiece_tokenizer(std::move(*model), std::move(origin));
  }
  return make_pipeline_tokenizer(std::move(std::get<TokenizerSteps>(content)), std::move(origin));
}

}  // namespace

bool is_tokenizer_path(std::string_view name) {
  std::error_code ignored;
  return name.find('/') != std::string_view::npos || name.find('.') != std::string_view::npos ||
         fs::exists(fs::path(name), ignored);
}

namespace {

bool is_of_model(const TokenizerFile& file) {
  return std::ranges::find(names::with_ids, file.name) != names::with_ids.end();
}

/// Returns nothing if the folder holds no stored tokenizer. Its ids are final.
std::unique_ptr<Tokenizer> load_stored_tokenizer(const std::string& path, const std::string& eos_token) {
  const std::string file = path + "/" + stored_tokenizer_name;
  const auto has = [&](std::string_view name) {
    std::error_code ignored;
    return fs::is_regular_file(path + "/" + std::string(name), ignored);
  };
  if (has(names::json) || has(names::vocab) || std::ranges::any_of(names::sentencepiece, has)) return nullptr;
  if (!has(stored_tokenizer_name)) return nullptr;
  std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer_from(FileHandle::open_to_read(file).read_text(max_stored_tokenizer_bytes));
  if (eos_token.empty() || (tokenizer->eos_id() >= 0 && tokenizer->token(tokenizer->eos_id()) == eos_token)) {
    return tokenizer;
  }
  throw UserError(ExitCode::bad_content, fmt::format("{}: its run did not end texts with the token "
                                                     "\"{}\"",
                                                     file, eos_token.substr(0, 60)));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const std::string& eos_token) {
  if (auto stored = load_stored_tokenizer(path, eos_token)) return stored;
  return build(read_tokenizer_files(path), eos_token, nullptr);
}

std::string serialize_origin(const TokenizerOrigin& origin) {
  nlohmann::ordered_json object = {{"type", "files"}, {"eos", origin.eos}, {"bos", origin.bos}, {"pad", origin.pad}};
  if (origin.class_is_stored) object["class"] = origin.tokenizer_class;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenizerFile& file : origin.files) {
    // The shape of the weights does not concern a tokenizer: everything useful in it is already in the ids.
    if (is_of_model(file)) continue;
    list.push_back({{"name", file.name}, {"base64", to_base64(file.bytes)}});
  }
  object["files"] = std::move(list);
  return object.dump();
}

namespace {

/// Parts of the result of serialize_origin().
struct StoredFiles {
  TokenizerOrigin origin;  ///< without files
  TokenizerFileSet set;
};

StoredFiles read_serialized(std::string_view serialized) {
  const std::string name = "stored tokenizer";
  constexpr JsonLimits limits{.bytes = max_tokenizer_json / 3 * 4 + (int64_t{8} << 20), .values = 1000};
  const nlohmann::json document = parse_json(serialized, name, limits);
  const JsonNode root(document, name);
  root.allow({"type", "eos", "bos", "pad", "class", "files"});
  const auto id = [&](std::string_view key) {
    return static_cast<int32_t>(root.at(key).integer_between(-1, INT32_MAX - 1));
  };
  StoredFiles stored{{id("eos"), id("bos"), id("pad"), {}}, {}};
  stored.origin.tokenizer_class = root.text_or("class", "");
  const JsonNode list = root.at("files");
  for (size_t i = 0; i < list.array().size(); ++i) {
    TokenizerFile file{list.at(i).at("name").text(), {}};
    check_file_name(file.name, name);
    if (i > 0 && !is_companion_file(file.name)) list.at(i).refuse("is not a tokenizer's file");
    if (!from_base64(list.at(i).at("base64").text(), file.bytes)) list.at(i).refuse("is not base64");
    stored.set.files.push_back(std::move(file));
  }
  if (stored.set.files.empty()) list.refuse("is empty");
  return stored;
}

constexpr int64_t max_serialized = int64_t{1} << 20;  // bytes; the largest char vocabulary takes half of it

std::vector<char32_t> read_code_points(const JsonNode& list) {
  if (list.array().size() == 0 || list.size() > max_char_vocabulary) {
    list.refuse(fmt::format("must be a list of 1 to {} code points", max_char_vocabulary));
  }
  std::vector<char32_t> code_points;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto c = static_cast<char32_t>(list.at(i).count(code_point_limit - 1));
    if (c >= 0xD800 && c < 0xE000) list.at(i).refuse("a surrogate is not a character");
    if (!code_points.empty() && code_points.back() >= c) list.at(i).refuse("code points must ascend");
    code_points.push_back(c);
  }
  return code_points;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from(std::string_view serialized) {
  if (serialized.starts_with(R"({"type":"files",)")) {
    StoredFiles stored = read_serialized(serialized);
    return build(std::move(stored.set), "", &stored.origin);
  }
  const std::string name = "stored tokenizer";
  const nlohmann::json document = parse_json(serialized, name, {.bytes = max_serialized});
  const JsonNode root(document, name);
  const std::string& kind = root.at("type").text();
  const bool bos = root.at("bos").boolean();
  if (kind == "bytes") return make_byte_tokenizer(bos);
  if (kind == "char") return make_char_tokenizer(read_code_points(root.at("code_points")), bos);
  root.at("type").refuse_value("char, bytes or files: make the token file again");
}

namespace {

/// Names in tokenizer_config.json the class that the tokenizer was read as, so that another config.json cannot decide.
void write_class(const std::string& tokenizer_class, std::vector<TokenizerFile>& files) {
  const auto found = std::ranges::find(files, names::config, &TokenizerFile::name);
  if (found == files.end() || files.front().name != names::json || tokenizer_class.empty()) return;
  auto config = nlohmann::ordered_json::parse(found->bytes);
  NamedClasses named;
  named.is_byte_level = files.front().bytes.find(byte_level_step) != std::string::npos;
  if (const auto name = config.find("tokenizer_class"); name != config.end() && name->is_string()) {
    named.tokenizer_class = *name;
  }
  std::string chosen = choose_tokenizer_class(named);
  if (chosen.empty()) chosen = names::keeping_class;
  if (!named.tokenizer_class.empty() && chosen == tokenizer_class) return;
  config["tokenizer_class"] = tokenizer_class;
  found->bytes = config.dump(2) + "\n";
}

/// Returns a tokenizer_config.json for a tokenizer whose files have none.
TokenizerFile usual_config(const Tokenizer& tokenizer, bool has_json) {
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  if (has_json) {
    const std::string kind = tokenizer.tokenizer_class();
    config["tokenizer_class"] = kind.empty() ? names::keeping_class : kind;
  }
  if (tokenizer.kind() == "sentencepiece bpe") {  // otherwise Transformers expects a tokenizer without spaces and BOS
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
  return {std::string(names::config), config.dump(2) + "\n"};
}

std::vector<AddedToken> added_of(const TokenizerContent& content) {
  const auto* model = std::get_if<SentencePieceModel>(&content);
  const auto& all = model != nullptr ? model->added : std::get<TokenizerSteps>(content).added.tokens();
  std::map<std::string_view, const AddedToken*> last;  // of equal contents the last one counts
  for (const AddedToken& token : all) last[token.content] = &token;
  std::vector<AddedToken> added;
  for (const auto& [text, token] : last) added.push_back(*token);
  std::ranges::sort(added, {}, &AddedToken::id);
  return added;
}

/// Names that a token for padding usually has.
bool names_padding(std::string_view text) {
  constexpr std::array<std::string_view, 4> usual = {"<pad>", "<PAD>", "[PAD]", "<|pad|>"};
  return std::ranges::find(usual, text) != usual.end();
}

}  // namespace

std::unique_ptr<Tokenizer> with_added_tokens(const Tokenizer& tokenizer, const std::vector<std::string>& tokens,
                                             const std::string& eos_token) {
  if (tokenizer.files().empty()) {
    throw UserError(
        ExitCode::deck,
        fmt::format("data.add_tokens: a tokenizer of {} cannot be given more tokens; name a tokenizer's files "
                    "by data.tokenizer, or remove the key",
                    tokenizer.kind()));
  }
  StoredFiles stored = read_serialized(tokenizer.serialized());
  TokenizerFileSet& set = stored.set;
  if (format_of(set) == Format::tiktoken) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("data.add_tokens: {} is a file of ranks, which cannot be given more tokens; use the "
                                "model's tokenizer.json",
                                set.files.front().name));
  }
  TokenizerFolder folder(set, stored.origin.tokenizer_class);
  const TokenizerContent content = read_main_files(set, folder);
  std::vector<AddedToken> added = added_of(content);
  const size_t before = added.size();
  auto next = static_cast<int32_t>(tokenizer.vocabulary_size());
  std::string padding;
  for (const std::string& text : tokens) {
    if (std::ranges::find(added, text, &AddedToken::content) == added.end()) {
      const int32_t known = std::visit([&](const auto& c) { return find_token(c, text); }, content);
      added.push_back({.content = text, .id = known >= 0 ? known : next, .special = true});
      next += known >= 0 ? 0 : 1;
    }
    if (padding.empty() && stored.origin.pad < 0 && names_padding(text)) {
      padding = text;
      stored.origin.pad = std::ranges::find(added, text, &AddedToken::content)->id;
    }
  }
  if (added.size() > before || !padding.empty()) {
    std::ranges::sort(added, {}, &AddedToken::id);
    const bool has_json = format_of(set) == Format::json;
    if (set.find(names::config) == nullptr && (!has_json || !padding.empty())) {
      set.files.push_back(usual_config(tokenizer, has_json));
    }
    write_added_tokens(set, added, padding);
  }
  return build(std::move(set), eos_token, &stored.origin);
}

std::vector<std::string> tokens_known_to(const Tokenizer& tokenizer, const std::vector<std::string>& tokens) {
  std::unordered_set<std::string> all;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) all.insert(tokenizer.token(id));
  std::vector<std::string> known;
  std::ranges::copy_if(tokens, std::back_inserter(known), [&](const std::string& text) { return all.contains(text); });
  return known;
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  std::vector<TokenizerFile> files = tokenizer.files();
  if (files.empty()) files = plain_tokenizer_files(tokenizer);
  // A file that was named directly can have any name; in a folder the usual name is looked for.
  TokenizerFile& main = files.front();
  const bool usual =
      main.name == names::vocab || std::ranges::find(names::sentencepiece, main.name) != names::sentencepiece.end();
  if (!usual) main.name = main.bytes.starts_with('{') ? names::json : names::sentencepiece[0];
  std::erase_if(files, is_of_model);
  write_class(tokenizer.tokenizer_class(), files);
  if (std::ranges::find(files, names::config, &TokenizerFile::name) == files.end()) {
    files.push_back(usual_config(tokenizer, files.front().name == names::json));
  }
  for (const TokenizerFile& file : files) {
    write_whole_file(folder + "/" + file.name, file.bytes);
  }
}

void require_eos(const Tokenizer& tokenizer, const std::string& path) {
  if (tokenizer.eos_id() >= 0) return;
  throw UserError(ExitCode::bad_content,
                  path +
                      ": no file names the token that ends a text (eos_token in tokenizer_config.json); name it by "
                      "data.eos_token (--eos-token)");
}

}  // namespace llmtrain
