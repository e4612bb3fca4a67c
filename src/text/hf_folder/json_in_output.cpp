// Decoders and post-processors of tokenizer.json.

#include <fmt/format.h>

#include <array>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "text/hf_folder/json_in.hpp"

namespace llmtrain {
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
