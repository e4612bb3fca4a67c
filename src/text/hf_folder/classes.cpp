#include "text/hf_folder/classes.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/assets.hpp"

// Read off the classes of Transformers 5.24 (models/*/tokenization_*.py).

namespace llmtrain {

extern const Asset text_assets[];  ///< generated

namespace {

using Steps = TokenizerClass::Steps;
using Around = TokenizerClass::Around;

constexpr std::string_view end_of_text = "<|endoftext|>";
constexpr std::array<std::string_view, token_keys.size()> gpt2_tokens = {end_of_text, end_of_text, end_of_text};
constexpr std::array<std::string_view, token_keys.size()> qwen_tokens = {"",          end_of_text, end_of_text, "",
                                                                         end_of_text, "",          ""};
constexpr std::array<std::string_view, token_keys.size()> bert_tokens = {"",      "",      "[UNK]", "[SEP]",
                                                                         "[PAD]", "[CLS]", "[MASK]"};
constexpr std::array<std::string_view, token_keys.size()> roberta_tokens = {"<s>",   "</s>", "<unk>", "</s>",
                                                                            "<pad>", "<s>",  "<mask>"};

constexpr std::string_view nfc = R"({"type":"NFC"})";
constexpr std::string_view pieces_decoder =
    R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},
        {"$if":"add_prefix_space","then":{"type":"Strip","content":" ","start":1,"stop":0},"else":null}]})";

constexpr TokenizerClass kept = {.name = "", .steps = Steps::kept};
constexpr TokenizerClass unknown = {.name = "", .steps = Steps::unknown};

constexpr std::array<TokenizerClass, 12> classes = {{
    {.name = "GPT2Tokenizer", .tokens = gpt2_tokens},
    {.name = "CodeGenTokenizer", .tokens = gpt2_tokens},
    {.name = "GPTNeoXTokenizer",
     .tokens = {end_of_text, end_of_text, end_of_text, "", "<|padding|>"},
     .normalizer = nfc,
     .around = {.own = true}},
    {.name = "Qwen2Tokenizer",
     .tokens = qwen_tokens,
     .normalizer = nfc,
     .pre_tokenizer =
         R"--({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior":"Isolated","invert":false},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":false}]})--",
     .named = TokenizerClass::Named::again_plain},
    {.name = "Qwen3_5Tokenizer",
     .tokens = qwen_tokens,
     .normalizer = nfc,
     .pre_tokenizer =
         R"--({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior":"Isolated","invert":false},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":false}]})--"},
    {.name = "CohereTokenizer",
     .tokens = {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"},
     .normalizer = nfc,
     .pre_tokenizer =
         R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":true}]})",
     .named = TokenizerClass::Named::again},
    {.name = "RobertaTokenizer",
     .tokens = roberta_tokens,
     .settings = R"({"add_prefix_space":false,"trim_offsets":true})",
     .around = {.own = true, .before = "cls_token", .after = "sep_token", .trims = true}},
    {.name = "DebertaTokenizer",
     .tokens = {"[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"},
     .around = {.own = true, .before = "cls_token", .after = "sep_token"}},
    {.name = "LlamaTokenizer",
     .tokens = {"<s>", "</s>", "<unk>"},
     .settings = R"({"add_prefix_space":true,"legacy":false})",
     .model = R"({"type":"BPE","fuse_unk":true,"byte_fallback":true})",
     .pre_tokenizer =
         R"({"type":"Metaspace","replacement":"\u2581","split":false,"prepend_scheme":{"$if":"add_prefix_space",
         "then":{"$if":"legacy","then":"always","else":"first"},"else":"never"}})",
     .decoder = pieces_decoder},
    {.name = "CodeLlamaTokenizer",
     .tokens = {"<s>", "</s>", "<unk>"},
     .settings = R"({"add_prefix_space":true})",
     .model = R"({"type":"BPE","fuse_unk":true,"byte_fallback":true,"unk_token":"$unk_token"})",
     .pre_tokenizer = R"({"type":"Metaspace","replacement":"\u2581","split":false,
         "prepend_scheme":{"$if":"add_prefix_space","then":"first","else":"never"}})",
     .decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
         {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})",
     .around = {.own = true, .before = "bos_token"},
     .more_tokens = {{{"prefix_token", "\xe2\x96\x81<PRE>"},
                      {"middle_token", "\xe2\x96\x81<MID>"},
                      {"suffix_token", "\xe2\x96\x81<SUF>"},
                      {"eot_token", "\xe2\x96\x81<EOT>"},
                      {"fill_token", "<FILL_ME>"}}}},
    {.name = "GemmaTokenizer",
     .tokens = {"<bos>", "<eos>", "<unk>", "", "<pad>", "", "<mask>"},
     .settings = "{}",
     .model = R"({"type":"BPE","fuse_unk":true,"byte_fallback":true,"unk_token":"$unk_token"})",
     .normalizer = R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"})",
     .pre_tokenizer = R"({"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})",
     .decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
         {"type":"ByteFallback"},{"type":"Fuse"}]})"},
    {.name = "BertTokenizer",
     .tokens = bert_tokens,
     .settings = R"({"do_lower_case":true,"tokenize_chinese_chars":true,"strip_accents":null})",
     .model = R"({"type":"WordPiece","unk_token":"$unk_token","continuing_subword_prefix":"##",
         "max_input_chars_per_word":100})",
     .normalizer = R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":"$tokenize_chinese_chars",
         "strip_accents":"$strip_accents","lowercase":"$do_lower_case"})",
     .pre_tokenizer = R"({"type":"BertPreTokenizer"})",
     .decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})",
     .around = {.own = true, .before = "cls_token", .after = "sep_token"}},
}};

/// Names under which a class above is there a second time.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> aliases = {{
    {"BartTokenizer", "RobertaTokenizer"},
    {"LEDTokenizer", "RobertaTokenizer"},
    {"MvpTokenizer", "RobertaTokenizer"},
    {"MobileBertTokenizer", "BertTokenizer"},
    {"SqueezeBertTokenizer", "BertTokenizer"},
    {"LxmertTokenizer", "BertTokenizer"},
    {"DistilBertTokenizer", "BertTokenizer"},
}};

/// The lists of tokenizers_of_models.txt.
struct Lists {
  std::map<std::string, std::string, std::less<>> classes;  ///< by types of models
  std::set<std::string, std::less<>> wrongly_named;         ///< types of models
  std::set<std::string, std::less<>> without_steps;         ///< classes
};

Lists read_lists() {
  Lists lists;
  std::string section, name;
  each_table_line(find_asset(text_assets, "tokenizers_of_models.txt"), [&](const std::string& line, int /*number*/) {
    if (line.starts_with('[')) {
      section = line;
      return;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.ends_with(':')) {
        name = word.substr(0, word.size() - 1);
      } else if (section == "[classes]") {
        lists.classes.try_emplace(word, name);
      } else {
        (section == "[wrongly named]" ? lists.wrongly_named : lists.without_steps).insert(word);
      }
    }
  });
  return lists;
}

const Lists& lists() {
  static const Lists all = read_lists();
  return all;
}

}  // namespace

std::string_view TokenizerClass::token(std::string_view key) const {
  const auto place = std::ranges::find(token_keys, key) - token_keys.begin();
  return tokens[static_cast<size_t>(place)];
}

const TokenizerClass& find_tokenizer_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (const auto* alias = std::ranges::find(aliases, name, [](const auto& pair) { return pair.first; });
      alias != aliases.end()) {
    name = alias->second;
  }
  const auto* const found = std::ranges::find(classes, name, &TokenizerClass::name);
  if (found != classes.end()) return *found;
  return lists().without_steps.contains(name) ? unknown : kept;
}

namespace {

constexpr std::string_view backend = "TokenizersBackend";  // which keeps the steps of tokenizer.json

std::string_view class_of_model(std::string_view model_type) {
  const auto found = lists().classes.find(model_type);
  return found == lists().classes.end() ? std::string_view() : found->second;
}

std::string_view without_fast(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  return name;
}

bool keeps_steps(std::string_view name) { return find_tokenizer_class(name).steps == TokenizerClass::Steps::kept; }

}  // namespace

std::string choose_tokenizer_class(const NamedClasses& names) {
  const std::string_view of_model = class_of_model(names.model_type);
  const std::string_view named =
      without_fast(names.tokenizer_class.empty() ? names.model_class : names.tokenizer_class);
  std::string_view chosen = named.empty() ? of_model : named;
  if (!names.has_code && !named.empty()) {
    const bool is_wrong = lists().wrongly_named.contains(names.model_type);
    if (named == "LlamaTokenizer" && names.is_byte_level && !is_wrong) return "";
    if (!of_model.empty() && of_model != named) {
      if (of_model == backend) return "";
      if (is_wrong) chosen = of_model;
    }
  }
  return keeps_steps(chosen) ? "" : std::string(chosen);
}

}  // namespace llmtrain
