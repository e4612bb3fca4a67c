#include "text/hf_folder/classes.hpp"

#include <algorithm>

// Read off the classes of Transformers 5.24 (models/*/tokenization_*.py).

namespace llmtrain {
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

constexpr std::string_view no_prefix_space = R"({"add_prefix_space":false})";
constexpr std::string_view bpe = R"({"type":"BPE"})";
constexpr std::string_view nfc = R"({"type":"NFC"})";
constexpr std::string_view byte_level =
    R"({"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":true})";
constexpr std::string_view byte_level_decoder =
    R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
constexpr std::string_view pieces_decoder =
    R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},
        {"$if":"add_prefix_space","then":{"type":"Strip","content":" ","start":1,"stop":0},"else":null}]})";

constexpr TokenizerClass kept = {.name = ""};
constexpr TokenizerClass unknown = {.name = "", .steps = Steps::unknown};

constexpr std::array<TokenizerClass, 12> classes = {{
    {.name = "GPT2Tokenizer",
     .steps = Steps::own,
     .tokens = gpt2_tokens,
     .settings = no_prefix_space,
     .model = bpe,
     .pre_tokenizer = byte_level,
     .decoder = byte_level_decoder},
    {.name = "CodeGenTokenizer",
     .steps = Steps::own,
     .tokens = gpt2_tokens,
     .settings = no_prefix_space,
     .model = bpe,
     .pre_tokenizer = byte_level,
     .decoder = byte_level_decoder},
    {.name = "GPTNeoXTokenizer",
     .steps = Steps::own,
     .tokens = {end_of_text, end_of_text, end_of_text, "", "<|padding|>"},
     .settings = no_prefix_space,
     .model = bpe,
     .normalizer = nfc,
     .pre_tokenizer = byte_level,
     .decoder = byte_level_decoder,
     .around = {.own = true}},
    {.name = "Qwen2Tokenizer",
     .steps = Steps::own,
     .tokens = qwen_tokens,
     .settings = no_prefix_space,
     .model = bpe,
     .normalizer = nfc,
     .pre_tokenizer =
         R"--({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior":"Isolated","invert":false},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":false}]})--",
     .decoder = byte_level_decoder,
     .named = TokenizerClass::Named::again_plain},
    {.name = "Qwen3_5Tokenizer",
     .steps = Steps::own,
     .tokens = qwen_tokens,
     .settings = no_prefix_space,
     .model = bpe,
     .normalizer = nfc,
     .pre_tokenizer =
         R"--({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior":"Isolated","invert":false},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":false}]})--",
     .decoder = byte_level_decoder},
    {.name = "CohereTokenizer",
     .steps = Steps::own,
     .tokens = {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"},
     .settings = no_prefix_space,
     .model = bpe,
     .normalizer = nfc,
     .pre_tokenizer =
         R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
             {"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":true}]})",
     .decoder = byte_level_decoder,
     .named = TokenizerClass::Named::again},
    {.name = "RobertaTokenizer",
     .steps = Steps::own,
     .tokens = roberta_tokens,
     .settings = R"({"add_prefix_space":false,"trim_offsets":true})",
     .model = bpe,
     .pre_tokenizer = byte_level,
     .decoder = byte_level_decoder,
     .around = {.own = true, .before = "cls_token", .after = "sep_token", .trims = true}},
    {.name = "DebertaTokenizer",
     .steps = Steps::own,
     .tokens = {"[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"},
     .settings = no_prefix_space,
     .model = bpe,
     .pre_tokenizer = byte_level,
     .decoder = byte_level_decoder,
     .around = {.own = true, .before = "cls_token", .after = "sep_token"}},
    {.name = "LlamaTokenizer",
     .steps = Steps::own,
     .tokens = {"<s>", "</s>", "<unk>"},
     .settings = R"({"add_prefix_space":true,"legacy":false})",
     .model = R"({"type":"BPE","fuse_unk":true,"byte_fallback":true})",
     .pre_tokenizer =
         R"({"type":"Metaspace","replacement":"\u2581","split":false,"prepend_scheme":{"$if":"add_prefix_space",
         "then":{"$if":"legacy","then":"always","else":"first"},"else":"never"}})",
     .decoder = pieces_decoder},
    {.name = "CodeLlamaTokenizer",
     .steps = Steps::own,
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
     .steps = Steps::own,
     .tokens = {"<bos>", "<eos>", "<unk>", "", "<pad>", "", "<mask>"},
     .model = R"({"type":"BPE","fuse_unk":true,"byte_fallback":true,"unk_token":"$unk_token"})",
     .normalizer = R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"})",
     .pre_tokenizer = R"({"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})",
     .decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
         {"type":"ByteFallback"},{"type":"Fuse"}]})"},
    {.name = "BertTokenizer",
     .steps = Steps::own,
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

/// Classes with steps of their own that are not above, and those that are Python code.
constexpr std::string_view without_steps =
    " AlbertTokenizer BarthezTokenizer BartphoTokenizer BertGenerationTokenizer BertJapaneseTokenizer "
    "BertTokenizerLegacy BertweetTokenizer BigBirdTokenizer BioGptTokenizer BlenderbotSmallTokenizer "
    "BlenderbotTokenizer ByT5Tokenizer CLIPTokenizer CTRLTokenizer CamembertTokenizer CanineTokenizer "
    "ClvpTokenizer CpmAntTokenizer CpmTokenizer DPRContextEncoderTokenizer DPRQuestionEncoderTokenizer "
    "DPRReaderTokenizer DebertaV2Tokenizer DiaTokenizer EsmTokenizer EsmcTokenizer FSMTTokenizer "
    "FastSpeech2ConformerTokenizer FlaubertTokenizer FunnelTokenizer GPTNeoXJapaneseTokenizer "
    "GPTSw3Tokenizer HerbertTokenizer LasrTokenizer LayoutLMv2Tokenizer LayoutLMv3Tokenizer "
    "LayoutXLMTokenizer LukeTokenizer M2M100Tokenizer MBart50Tokenizer MBartTokenizer MLukeTokenizer "
    "MPNetTokenizer MarianTokenizer MarkupLMTokenizer MgpstrTokenizer MyT5Tokenizer NllbTokenizer "
    "NougatTokenizer OpenAIGPTTokenizer PLBartTokenizer PegasusTokenizer PerceiverTokenizer "
    "PhobertTokenizer ProphetNetTokenizer ReformerTokenizer RemBertTokenizer RoCBertTokenizer "
    "RoFormerTokenizer SeamlessM4TTokenizer Siglip2Tokenizer SiglipTokenizer Speech2TextTokenizer "
    "SpeechT5Tokenizer SplinterTokenizer T5Tokenizer TapasTokenizer Tipsv2Tokenizer UdopTokenizer "
    "VideoPrismTokenizer VitsTokenizer Wav2Vec2CTCTokenizer Wav2Vec2PhonemeCTCTokenizer WhisperTokenizer "
    "XGLMTokenizer XLMRobertaTokenizer XLMTokenizer XLNetTokenizer ";

}  // namespace

bool has_word(std::string_view words, std::string_view word) {
  return !word.empty() && word.find(' ') == std::string_view::npos &&
         words.find(" " + std::string(word) + " ") != std::string_view::npos;
}

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
  return has_word(without_steps, name) ? unknown : kept;
}

}  // namespace llmtrain
