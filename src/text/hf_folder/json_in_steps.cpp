#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "text/hf_folder/base64.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/sentencepiece/charsmap.hpp"

// Normalizers, pre-tokenizers, decoders and post-processors of tokenizer.json.

namespace llmtrain {

std::string type_of(const JsonNode& node) { return node.has("type") ? node.at("type").text() : std::string("(none)"); }

char32_t character_of(const JsonNode& node) {
  const std::u32string characters = to_characters(node.text());
  if (characters.size() != 1) node.refuse("must be one character");
  return characters[0];
}

namespace {

[[noreturn]] void refuse_type(const JsonNode& node, std::span<const std::string_view> known) {
  const std::string type = type_of(node);
  node.refuse(fmt::format("the type {} is not supported{}", type, did_you_mean(type, known)));
}

/// Reads {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  bool is_regex;
  std::string text;
};
Pattern pattern_of(const JsonNode& node) {
  node.allow({"String", "Regex"});
  if (node.size() != 1) node.refuse("must be a String or a Regex");
  if (node.has("String")) return {false, node.at("String").text()};
  return {true, node.at("Regex").text()};
}

SplitBehavior behavior_of(const JsonNode& node) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> names = {
      {{"Removed", SplitBehavior::removed},
       {"Isolated", SplitBehavior::isolated},
       {"MergedWithPrevious", SplitBehavior::merged_with_previous},
       {"MergedWithNext", SplitBehavior::merged_with_next},
       {"Contiguous", SplitBehavior::contiguous}}};
  for (const auto& [name, behavior] : names) {
    if (node.text() == name) return behavior;
  }
  node.refuse(fmt::format("the behavior {} is not supported", node.text()));
}

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

void add_simple_normalizer(const JsonNode& node, const std::string& type, Normalizers& steps) {
  constexpr std::array<std::string_view, 14> known = {
      "NFC",     "NFD",     "NFKC",        "NFKD",           "Lowercase", "StripAccents", "Nmt",
      "Replace", "Prepend", "Precompiled", "BertNormalizer", "Sequence",  "Strip",        "ByteLevel"};
  node.allow({"type"});
  if (type == "NFC") {
    steps.push_back(make_form_normalizer(NormalizationForm::nfc));
  } else if (type == "NFD") {
    steps.push_back(make_form_normalizer(NormalizationForm::nfd));
  } else if (type == "NFKC") {
    steps.push_back(make_form_normalizer(NormalizationForm::nfkc));
  } else if (type == "NFKD") {
    steps.push_back(make_form_normalizer(NormalizationForm::nfkd));
  } else if (type == "Lowercase") {
    steps.push_back(make_lowercase_normalizer());
  } else if (type == "StripAccents") {
    steps.push_back(make_strip_accents_normalizer());
  } else if (type == "Nmt") {
    steps.push_back(make_nmt_normalizer());
  } else if (type == "ByteLevel") {
    steps.push_back(make_byte_level_normalizer());
  } else {
    refuse_type(node, known);
  }
}

void add_normalizers(const JsonNode& node, Normalizers& steps) {
  if (node.is_null()) return;
  if (steps.size() >= max_steps) node.refuse(fmt::format("more than {} steps", max_steps));
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.allow({"type", "normalizers"});
    const JsonNode list = node.at("normalizers");
    for (size_t i = 0; i < list.array().size(); ++i) add_normalizers(list.at(i), steps);
  } else if (type == "Replace") {
    node.allow({"type", "pattern", "content"});
    const Pattern pattern = pattern_of(node.at("pattern"));
    const std::string content = node.at("content").text();
    steps.push_back(pattern.is_regex ? make_regex_replace_normalizer(pattern.text, content, node.where())
                                     : make_replace_normalizer(pattern.text, content));
  } else if (type == "Prepend") {
    node.allow({"type", "prepend"});
    steps.push_back(make_prepend_normalizer(node.at("prepend").text()));
  } else if (type == "Strip") {
    node.allow({"type", "strip_left", "strip_right"});
    steps.push_back(make_strip_normalizer(node.at("strip_left").boolean(), node.at("strip_right").boolean()));
  } else if (type == "BertNormalizer") {
    node.allow({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    BertNormalization options;
    options.clean_text = node.at("clean_text").boolean();
    options.handle_chinese_chars = node.at("handle_chinese_chars").boolean();
    options.lowercase = node.at("lowercase").boolean();
    options.strip_accents = node.boolean_or("strip_accents", options.lowercase);
    add_bert_normalizers(options, steps);
  } else if (type == "Precompiled") {
    node.allow({"type", "precompiled_charsmap"});
    const JsonNode map = node.at("precompiled_charsmap");
    if (map.is_null() || map.text().empty()) return;
    std::string blob;
    if (!from_base64(map.text(), blob)) map.refuse("must be base64");
    steps.push_back(make_precompiled_normalizer(std::make_shared<const Charsmap>(blob, "tokenizer.json")));
  } else {
    add_simple_normalizer(node, type, steps);
  }
}

using PreTokenizers = std::vector<std::unique_ptr<PreTokenizer>>;

PrependScheme prepend_scheme_of(const JsonNode& node) {
  std::string scheme = node.text_or("prepend_scheme", "always");
  if (!node.boolean_or("add_prefix_space", true)) {
    if (node.has("prepend_scheme") && scheme != "never")
      node.refuse("add_prefix_space and prepend_scheme contradict each other");
    scheme = "never";
  }
  if (scheme == "first") return PrependScheme::first;
  if (scheme == "never") return PrependScheme::never;
  if (scheme != "always") node.refuse(fmt::format("the prepend_scheme {} is not supported", scheme));
  return PrependScheme::always;
}

/// Expands ByteLevel into three steps: a space, a split, the byte form.
void add_byte_level(const JsonNode& node, PreTokenizers& steps) {
  node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.boolean_or("add_prefix_space", true)) steps.push_back(make_prefix_space());
  if (node.boolean_or("use_regex", true)) {
    steps.push_back(make_pattern_split(*SplitPattern::find_name("gpt2"), SplitBehavior::isolated, false));
  }
  steps.push_back(make_normalizing_step(make_byte_level_normalizer()));
}

void add_split(const JsonNode& node, PreTokenizers& steps) {
  node.allow({"type", "pattern", "behavior", "invert"});
  const Pattern pattern = pattern_of(node.at("pattern"));
  const SplitBehavior behavior = behavior_of(node.at("behavior"));
  const bool invert = node.boolean_or("invert", false);
  if (!pattern.is_regex) {
    steps.push_back(make_literal_split(pattern.text, behavior, invert));
    return;
  }
  if (const RegexMatch match = find_replace_regex(pattern.text)) {
    steps.push_back(make_regex_split(match, behavior, invert));
    return;
  }
  if (const SplitPattern* known = SplitPattern::find(pattern.text)) {
    steps.push_back(make_pattern_split(*known, behavior, invert));
    return;
  }
  steps.push_back(make_regex_split(std::make_unique<Regex>(pattern.text, node.where()), behavior, invert));
}

void add_simple_pre_tokenizer(const JsonNode& node, const std::string& type, PreTokenizers& steps) {
  constexpr std::array<std::string_view, 11> known = {
      "ByteLevel", "Split",       "Whitespace",  "Metaspace",         "Digits", "WhitespaceSplit", "BertPreTokenizer",
      "Sequence",  "Punctuation", "FixedLength", "CharDelimiterSplit"};
  if (type == "Whitespace") {
    node.allow({"type"});
    steps.push_back(make_word_split_pre_tokenizer());
  } else if (type == "WhitespaceSplit") {
    node.allow({"type"});
    steps.push_back(make_white_space_split());
  } else if (type == "BertPreTokenizer") {
    node.allow({"type"});
    steps.push_back(make_white_space_split());
    steps.push_back(make_punctuation_split(SplitBehavior::isolated));
  } else if (type == "Digits") {
    node.allow({"type", "individual_digits"});
    steps.push_back(make_digits_split(node.boolean_or("individual_digits", false)));
  } else if (type == "Punctuation") {
    node.allow({"type", "behavior"});
    steps.push_back(
        make_punctuation_split(node.has("behavior") ? behavior_of(node.at("behavior")) : SplitBehavior::isolated));
  } else if (type == "CharDelimiterSplit") {
    node.allow({"type", "delimiter"});
    std::string delimiter;
    append_character(delimiter, character_of(node.at("delimiter")));
    steps.push_back(make_literal_split(delimiter, SplitBehavior::removed, false));
  } else if (type == "FixedLength") {
    node.allow({"type", "length"});
    steps.push_back(make_fixed_length_split(
        node.has("length") ? static_cast<size_t>(node.at("length").integer_between(1, 1 << 20)) : size_t{5}));
  } else {
    refuse_type(node, known);
  }
}

void add_pre_tokenizers(const JsonNode& node, PreTokenizers& steps, bool& ends_in_byte_form) {
  if (node.is_null()) return;
  if (steps.size() >= max_steps) node.refuse(fmt::format("more than {} steps", max_steps));
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.allow({"type", "pretokenizers"});
    const JsonNode list = node.at("pretokenizers");
    for (size_t i = 0; i < list.array().size(); ++i) add_pre_tokenizers(list.at(i), steps, ends_in_byte_form);
    return;
  }
  ends_in_byte_form = type == "ByteLevel";
  if (type == "ByteLevel") {
    add_byte_level(node, steps);
  } else if (type == "Split") {
    add_split(node, steps);
  } else if (type == "Metaspace") {
    node.allow({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    steps.push_back(
        make_metaspace(character_of(node.at("replacement")), prepend_scheme_of(node), node.boolean_or("split", true)));
  } else {
    add_simple_pre_tokenizer(node, type, steps);
  }
}

}  // namespace

std::vector<std::unique_ptr<Normalizer>> read_normalizer(const JsonNode& node) {
  Normalizers steps;
  add_normalizers(node, steps);
  return steps;
}

std::vector<std::unique_ptr<PreTokenizer>> read_pre_tokenizer(const JsonNode& node, bool may_take_bytes,
                                                              bool& takes_bytes) {
  PreTokenizers steps;
  takes_bytes = false;
  add_pre_tokenizers(node, steps, takes_bytes);
  takes_bytes = takes_bytes && may_take_bytes;
  if (takes_bytes) steps.pop_back();
  return steps;
}

namespace {

constexpr size_t max_special_tokens = 1024;  ///< around a text

using Decoders = std::vector<std::unique_ptr<TokenDecoder>>;

std::unique_ptr<TokenDecoder> replace_decoder(const JsonNode& node) {
  node.allow({"type", "pattern", "content"});
  const JsonNode pattern = node.at("pattern");
  pattern.allow({"String", "Regex"});
  const std::string& content = node.at("content").text();
  if (pattern.has("String")) return make_replace_decoder(pattern.at("String").text(), content);
  return make_regex_replace_decoder(pattern.at("Regex").text(), content, node.where());
}

std::unique_ptr<TokenDecoder> metaspace_decoder(const JsonNode& node) {
  node.allow({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const bool never = node.text_or("prepend_scheme", "always") == "never" || !node.boolean_or("add_prefix_space", true);
  return make_metaspace_decoder(character_of(node.at("replacement")), never);
}

void add_decoders(const JsonNode& node, Decoders& steps) {
  constexpr std::array<std::string_view, 9> known = {"ByteLevel",    "Metaspace", "WordPiece", "Sequence",  "Replace",
                                                     "ByteFallback", "Fuse",      "Strip",     "BPEDecoder"};
  if (node.is_null()) return;
  if (steps.size() >= max_steps) node.refuse(fmt::format("more than {} steps", max_steps));
  const std::string type = type_of(node);
  if (type == "Sequence") {
    node.allow({"type", "decoders"});
    const JsonNode list = node.at("decoders");
    for (size_t i = 0; i < list.array().size(); ++i) add_decoders(list.at(i), steps);
  } else if (type == "ByteLevel") {
    node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps.push_back(make_byte_level_decoder());
  } else if (type == "ByteFallback" || type == "Fuse") {
    node.allow({"type"});
    steps.push_back(type == "Fuse" ? make_fuse_decoder() : make_byte_fallback_decoder());
  } else if (type == "Replace") {
    steps.push_back(replace_decoder(node));
  } else if (type == "Metaspace") {
    steps.push_back(metaspace_decoder(node));
  } else if (type == "Strip") {
    node.allow({"type", "content", "start", "stop"});
    const auto count = [&](std::string_view key) {
      return static_cast<size_t>(node.at(key).integer_between(0, 1 << 20));
    };
    steps.push_back(make_strip_decoder(character_of(node.at("content")), count("start"), count("stop")));
  } else if (type == "WordPiece") {
    node.allow({"type", "prefix", "cleanup"});
    steps.push_back(make_word_piece_decoder(node.at("prefix").text(), node.at("cleanup").boolean()));
  } else if (type == "BPEDecoder") {
    node.allow({"type", "suffix"});
    steps.push_back(make_bpe_decoder(node.at("suffix").text()));
  } else if (type == "CTC") {
    node.refuse("a CTC decoder is for speech, not for text, and is not supported");
  } else {
    node.refuse(fmt::format("the type {} is not supported{}", type, did_you_mean(type, known)));
  }
}

class PostReader {
 public:
  explicit PostReader(int64_t id_limit) : id_limit_(id_limit) {}

  void add(const JsonNode& node) {
    constexpr std::array<std::string_view, 5> known = {"ByteLevel", "TemplateProcessing", "BertProcessing",
                                                       "RobertaProcessing", "Sequence"};
    if (node.is_null()) return;
    const std::string type = type_of(node);
    if (type == "Sequence") {
      node.allow({"type", "processors"});
      const JsonNode list = node.at("processors");
      if (list.array().size() > max_steps) list.refuse(fmt::format("more than {} steps", max_steps));
      for (size_t i = 0; i < list.size(); ++i) add(list.at(i));
    } else if (type == "ByteLevel") {
      node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      trim(node);
    } else if (type == "BertProcessing") {
      node.allow({"type", "sep", "cls"});
      surround({pair(node.at("cls"))}, {pair(node.at("sep"))});
    } else if (type == "RobertaProcessing") {
      node.allow({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
      trim(node);
      surround({pair(node.at("cls"))}, {pair(node.at("sep"))});
    } else if (type == "TemplateProcessing") {
      add_template(node);
    } else {
      node.refuse(fmt::format("the type {} is not supported{}", type, did_you_mean(type, known)));
    }
    if (result_.before.size() + result_.after.size() > max_special_tokens) node.refuse("too many special tokens");
  }
  PostProcessor take() { return std::move(result_); }

 private:
  int32_t id_of(const JsonNode& node) const { return static_cast<int32_t>(node.integer_between(0, id_limit_ - 1)); }
  /// Reads ["[SEP]", 102].
  int32_t pair(const JsonNode& node) const { return id_of(node.at(size_t{1})); }

  void trim(const JsonNode& node) {
    if (!node.boolean_or("trim_offsets", true)) return;
    result_.trim_offsets = true;
    result_.add_prefix_space = node.boolean_or("add_prefix_space", true);
  }

  void surround(const std::vector<int32_t>& before, const std::vector<int32_t>& after) {
    result_.before.insert(result_.before.begin(), before.begin(), before.end());
    result_.after.insert(result_.after.end(), after.begin(), after.end());
  }

  /// Reads the template of a single text: special tokens around the one sequence A.
  void add_template(const JsonNode& node) {
    node.allow({"type", "single", "pair", "special_tokens"});
    const JsonNode special = node.at("special_tokens");
    const JsonNode single = node.at("single");
    std::vector<int32_t> before, after;
    int sequences = 0;
    for (size_t i = 0; i < single.array().size(); ++i) {
      const JsonNode piece = single.at(i);
      piece.allow({"Sequence", "SpecialToken"});
      if (piece.has("Sequence")) {
        if (++sequences > 1 || piece.at("Sequence").at("id").text() != "A") piece.refuse("must be the one sequence A");
        continue;
      }
      const JsonNode ids = special.at(piece.at("SpecialToken").at("id").text()).at("ids");
      if (ids.array().size() > max_special_tokens) ids.refuse("too many ids");
      for (size_t k = 0; k < ids.size(); ++k) (sequences == 0 ? before : after).push_back(id_of(ids.at(k)));
    }
    if (sequences == 0) single.refuse("does not hold the text, a Sequence");
    surround(before, after);
  }

  int64_t id_limit_;
  PostProcessor result_;
};

}  // namespace

std::vector<std::unique_ptr<TokenDecoder>> read_decoder(const JsonNode& node) {
  Decoders steps;
  add_decoders(node, steps);
  return steps;
}

PostProcessor read_post_processor(const JsonNode& node, int64_t id_limit) {
  PostReader reader(id_limit);
  reader.add(node);
  return reader.take();
}

}  // namespace llmtrain
