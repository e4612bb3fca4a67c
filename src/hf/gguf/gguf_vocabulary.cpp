#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "core/files/json_reader.hpp"
#include "hf/gguf/gguf_model.hpp"
#include "text/hf_folder/configs.hpp"
#include "text/hf_folder/file_set.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/hf_folder/json_out.hpp"
#include "text/pipeline/byte_level.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::json;
namespace names = tokenizer_names;

constexpr std::string_view space_mark = "\xE2\x96\x81";  ///< U+2581, a space in SentencePiece's tokens

/// ggml's token types.
enum TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

[[noreturn]] void refuse(const std::string& what) {
  throw UserError(ExitCode::bad_content, "the tokenizer cannot be written as GGUF: " + what);
}

/// tokenizer.ggml.* of one tokenizer.
struct GgufVocabulary {
  std::string model;              ///< "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string split = "default";  ///< llama.cpp's name of the split into words
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;  ///< SentencePiece: the pair whose token has the highest is merged first
  std::vector<std::string> merges;
  bool space_prefix = false;
  std::vector<std::string> warnings;

  explicit GgufVocabulary(int64_t rows) {
    for (int64_t id = 0; id < rows; ++id) tokens.push_back(fmt::format("[PAD{}]", id));
    types.assign(tokens.size(), unused);
    scores.assign(tokens.size(), -10000);
  }
  bool has(int64_t id) const { return id >= 0 && id < std::ssize(tokens); }
  void set(int64_t id, std::string text, TokenType type, float score = 0) {
    if (!has(id)) return;
    const auto at = static_cast<size_t>(id);
    tokens[at] = std::move(text);
    types[at] = type;
    scores[at] = score;
  }
};

/// A tokenizer.json as the tokenizer reads it, GPT-2's two files in its form, or that of a char or bytes tokenizer.
Json document_of(const Tokenizer& tokenizer) {
  TokenizerFileSet set{"", tokenizer.files(), true};
  if (set.files.empty()) set.files = plain_tokenizer_files(tokenizer);
  const TokenizerFile& first = set.files.front();
  if (format_of(set) == TokenizerFormat::json) {
    Json document = parse_json(first.bytes, first.name, tokenizer_limits);
    TokenizerFolder(set, tokenizer.tokenizer_class()).rebuild(document);
    return document;
  }
  if (format_of(set) != TokenizerFormat::gpt2) {
    refuse("a file of tiktoken ranks has no merges; save it with Transformers as a tokenizer.json");
  }
  Json merges = Json::array();
  const std::string& lines = set.find(names::merges)->bytes;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    std::string line = lines.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    begin = end + 1;
  }
  return {{"model", {{"vocab", parse_json(first.bytes, first.name, tokenizer_limits)}, {"merges", std::move(merges)}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
}

/// Calls take(step) for each step of a section that is not a sequence.
template <class Take>
void each_step(const Json& section, const Take& take) {
  if (!section.is_object()) return;
  for (const char* list : {"normalizers", "pretokenizers", "decoders"}) {
    const auto steps = section.find(list);
    if (steps == section.end()) continue;
    for (const Json& step : *steps) each_step(step, take);
    return;
  }
  take(section);
}
bool has_step(const Json& document, const char* section, std::string_view type) {
  bool found = false;
  each_step(document.value(section, Json()),
            [&](const Json& step) { found = found || step.value("type", "") == type; });
  return found;
}

/// Names that llmtrain's split patterns have in llama.cpp; whether it looks up a whole word before it merges is part of
/// the name.
struct SplitName {
  std::string_view regex, merging, whole_words;
};
constexpr std::string_view gpt2_split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::array<SplitName, 9> split_names = {
    {{gpt2_split, "gpt-2", ""},
     {R"('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "gpt-2", ""},
     {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "gpt-2", ""},
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "smaug-bpe", "llama-bpe"},
     {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "smaug-bpe", "llama-bpe"},
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "qwen2", ""},
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "qwen35", ""},
     {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "gpt-4o", ""},
     {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "", "tekken"}}};

/// Steps of StarCoder's and Falcon's tokenizers, as patterns.
constexpr std::string_view one_digit = R"(\p{N})", digits = R"(\p{N}+)", punctuation = R"(\p{P}+)";

std::string split_of(const Json& document) {
  std::set<std::string> patterns;
  each_step(document.value("pre_tokenizer", Json()), [&](const Json& step) {
    const std::string type = step.value("type", "");
    if (type == "ByteLevel") {
      if (step.value("add_prefix_space", true)) refuse("llama.cpp puts no space before a text (add_prefix_space)");
      if (step.value("use_regex", true)) patterns.emplace(gpt2_split);
    } else if (type == "Split" && step.value("pattern", Json::object()).contains("Regex")) {
      patterns.insert(step["pattern"]["Regex"].get<std::string>());
    } else if (type == "Digits") {
      patterns.emplace(step.value("individual_digits", false) ? one_digit : digits);
    } else if (type == "Punctuation" && step.value("behavior", "") == "Contiguous") {
      patterns.emplace(punctuation);
    } else {
      refuse(fmt::format("llama.cpp does not know this split into words: {}", printable(type)));
    }
  });
  const bool merges = !document["model"].value("merges", Json::array()).empty();
  if (patterns.empty() && !merges) return "gpt-2";  // words do not matter
  const bool whole_words = document["model"].value("ignore_merges", false);
  const auto are = [&](const std::set<std::string_view>& steps) {
    return !whole_words && std::ranges::equal(patterns, steps);
  };
  if (are({gpt2_split, one_digit})) return "starcoder";
  if (are({gpt2_split, digits, punctuation, "[0-9][0-9][0-9]"})) return "falcon";
  for (const SplitName& known : split_names) {
    if (patterns != std::set<std::string>{std::string(known.regex)}) continue;
    const std::string_view name = whole_words ? known.whole_words : known.merging;
    if (!name.empty()) return std::string(name);
  }
  refuse("llama.cpp has no name for the pattern that splits its texts into words");
}

/// Returns the merges as "left right".
std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : model.value("merges", Json::array())) {
    merges.push_back(merge.is_array() ? merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>()
                                      : merge.get<std::string>());
  }
  return merges;
}

void read_byte_level(const Json& document, GgufVocabulary& v) {
  v.model = "gpt2";
  v.split = split_of(document);
  for (const auto& [text, id] : document["model"]["vocab"].items()) v.set(id.get<int64_t>(), text, normal);
  v.merges = merges_of(document["model"]);
  each_step(document.value("normalizer", Json()), [&](const Json& step) {
    if (step.value("type", "") != "NFC")
      refuse("llama.cpp does not change texts: " + printable(step.value("type", "")));
    v.warnings.emplace_back("llama.cpp does not normalise texts (NFC), as the tokenizer does");
  });
}

/// True for the files of a char tokenizer: no step before the vocabulary, no merges.
bool is_of_characters(const Json& document) {
  const auto none = [&](const char* section) { return document.value(section, Json()).is_null(); };
  return none("normalizer") && none("pre_tokenizer") && document["model"].value("merges", Json::array()).empty();
}

/// True for the first byte of a character in UTF-8.
bool begins_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }

/// The token of a character is made of its bytes, by merges from the left; no other merges exist.
void read_characters(const Json& document, GgufVocabulary& v) {
  v.model = "gpt2";
  v.split = "gpt-2";
  std::set<std::string> merges;
  for (const auto& [text, id] : document["model"]["vocab"].items()) {
    v.set(id.get<int64_t>(), to_byte_level(text), normal);
    if (std::ranges::count_if(text, begins_character) != 1) continue;  // a special token
    for (size_t length = 1; length < text.size(); ++length) {
      const std::string merge = to_byte_level(text.substr(0, length)) + " " + to_byte_level(text.substr(length, 1));
      if (merges.insert(merge).second) v.merges.push_back(merge);
    }
  }
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
}

/// The score of a token is the rank of the first merge that makes it, as in the SentencePiece model that the merges
/// were derived from.
void read_sentencepiece_json(const Json& document, GgufVocabulary& v) {
  v.model = "llama";
  const Json& model = document["model"];
  const std::string unk = model.value("unk_token", Json()).is_string() ? model["unk_token"].get<std::string>() : "";
  const bool has_bytes = model.value("byte_fallback", false);
  const std::vector<std::string> merges = merges_of(model);
  std::unordered_map<std::string, float> scores;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string merged = merges[rank];
    merged.erase(merged.find(' '), 1);
    scores.emplace(std::move(merged), -static_cast<float>(rank));
  }
  for (const auto& [text, id] : model["vocab"].items()) {
    const TokenType type = has_bytes && is_byte_token(text) ? byte : text == unk ? unknown : normal;
    const auto score = scores.find(text);
    v.set(id.get<int64_t>(), text, type, score == scores.end() ? -static_cast<float>(merges.size()) : score->second);
  }
  each_step(document.value("normalizer", Json()), [&](const Json& step) {
    const std::string type = step.value("type", "");
    if (type == "Prepend") v.space_prefix = true;
    if (type != "Prepend" && type != "Replace") refuse("llama.cpp does not change texts: " + printable(type));
  });
  each_step(document.value("pre_tokenizer", Json()), [&](const Json& step) {
    if (step.value("type", "") != "Metaspace") return;
    v.space_prefix = step.value("prepend_scheme", "always") != "never" && step.value("add_prefix_space", true);
    if (v.space_prefix) {
      v.warnings.emplace_back(
          "llama.cpp puts a space before every text, and the tokenizer only before those that begin with none");
    }
  });
}

void read_sentencepiece(const Tokenizer& tokenizer, GgufVocabulary& v) {
  using Type = SentencePieceModel::Type;
  const TokenizerFile file = tokenizer.files().front();
  const SentencePieceModel model = read_sentencepiece_model(file.bytes, file.name);
  if (model.kind != SentencePieceModel::Kind::bpe) refuse("only SentencePiece's BPE is written, not its unigram model");
  v.model = "llama";
  v.space_prefix = model.add_dummy_prefix;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const TokenType type = piece.type == Type::byte           ? byte
                           : piece.type == Type::unknown      ? unknown
                           : piece.type == Type::control      ? control
                           : piece.type == Type::user_defined ? user_defined
                           : piece.type == Type::unused       ? unused
                                                              : normal;
    v.set(static_cast<int64_t>(id), piece.text, type, piece.score);
  }
}

/// Texts of added tokens are searched for as they are; those of SentencePiece's user-defined pieces have spaces.
void add_tokens(const Tokenizer& tokenizer, const Json& document, GgufVocabulary& v) {
  const auto put = [&](int64_t id, std::string text, bool special) {
    for (size_t at = 0; !special && (at = text.find(space_mark, at)) != std::string::npos;) {
      text.replace(at, space_mark.size(), " ");
    }
    if (v.has(id) && v.types[static_cast<size_t>(id)] != unknown) {
      v.set(id, std::move(text), special ? control : user_defined, -1000);
    }
  };
  const auto added = document.find("added_tokens");
  if (added != document.end()) {
    for (const Json& token : *added) {
      const auto id = token.at("id").get<int32_t>();
      put(id, token.at("content").get<std::string>(), token.value("special", false) || tokenizer.is_special(id));
    }
  }
  for (int32_t id = 0; id < std::min<int64_t>(tokenizer.vocabulary_size(), std::ssize(v.tokens)); ++id) {
    const int32_t type = v.types[static_cast<size_t>(id)];
    const std::string text = tokenizer.token(id);
    if (type == unused && !text.empty()) put(id, text, tokenizer.is_special(id));
    if (type == normal && tokenizer.is_special(id)) v.types[static_cast<size_t>(id)] = control;
  }
}

/// Special tokens, and whether a text begins and ends with them.
void add_special(GgufMetadata& metadata, const Tokenizer& tokenizer, const GgufVocabulary& v) {
  const auto name = [&](const char* key, int32_t id) {
    if (id >= std::ssize(v.tokens)) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("the tokenizer's {} token has the id {}, but the model's vocabulary has {} tokens: it is "
                      "the tokenizer of another model",
                      key, id, v.tokens.size()));
    }
    if (id >= 0) metadata.add(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(id));
  };
  name("bos", tokenizer.bos_id());
  name("eos", tokenizer.eos_id());
  name("padding", tokenizer.pad_id());
  for (size_t id = 0; id < v.types.size(); ++id) {
    if (v.types[id] == unknown) name("unknown", static_cast<int32_t>(id));
  }
  std::vector<int32_t> around = {-1};
  tokenizer.add_special_tokens(around, nullptr);
  metadata.add("tokenizer.ggml.add_bos_token", around.front() >= 0 && around.front() == tokenizer.bos_id());
  metadata.add("tokenizer.ggml.add_eos_token", around.back() >= 0 && around.back() == tokenizer.eos_id());
}

}  // namespace

std::vector<std::string> add_vocabulary(GgufMetadata& metadata, const Tokenizer& tokenizer, int64_t rows) {
  GgufVocabulary v(rows);
  Json document = Json::object();
  const std::vector<TokenizerFile> files = tokenizer.files();
  if (!files.empty() && format_of({"", files, true}) == TokenizerFormat::sentencepiece) {
    read_sentencepiece(tokenizer, v);
  } else {
    document = document_of(tokenizer);
    const std::string kind = document["model"].value("type", "BPE");
    if (kind != "BPE") refuse("only byte-pair encodings are written, not " + printable(kind));
    if (has_step(document, "pre_tokenizer", "ByteLevel") || has_step(document, "decoder", "ByteLevel")) {
      read_byte_level(document, v);
    } else if (is_of_characters(document)) {
      read_characters(document, v);
    } else {
      read_sentencepiece_json(document, v);
    }
  }
  add_tokens(tokenizer, document, v);
  metadata.add("tokenizer.ggml.model", v.model);
  metadata.add("tokenizer.ggml.pre", v.split);
  metadata.add("tokenizer.ggml.tokens", v.tokens);
  if (v.model == "llama") metadata.add("tokenizer.ggml.scores", v.scores);
  metadata.add("tokenizer.ggml.token_type", v.types);
  if (v.model == "gpt2") metadata.add("tokenizer.ggml.merges", v.merges);
  if (v.model == "llama") metadata.add("tokenizer.ggml.add_space_prefix", v.space_prefix);
  add_special(metadata, tokenizer, v);
  return v.warnings;
}

}  // namespace llmtrain
