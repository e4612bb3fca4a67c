#include "text/hf_folder/classes.hpp"

#include <algorithm>

// Read off the classes of Transformers 5.24 (models/*/tokenization_*.py).
// Read off Transformers 5.24 (models/auto/tokenization_auto.py).

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

namespace {

constexpr std::string_view backend = "TokenizersBackend";  // which keeps the steps of tokenizer.json

struct ModelTypes {
  std::string_view tokenizer_class;
  std::string_view model_types;  ///< with a space around each
};

constexpr std::array<ModelTypes, 81> tokenizers_of_models = {{
    {backend,
     " EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 "
     "ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr "
     "got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared "
     "h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear "
     "kosmos-2 llava llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 "
     "minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral modernbert "
     "modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid "
     "omniasr opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral "
     "pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl "},
    {"AlbertTokenizer", " albert yoso "},
    {"BartTokenizer", " florence2 "},
    {"BertGenerationTokenizer", " bert-generation "},
    {"BertTokenizer",
     " align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino "
     "layoutlm megatron-bert mm-grounding-dino nomic_bert squeezebert tvp vilt visual_bert "},
    {"BigBirdTokenizer", " big_bird "},
    {"BioGptTokenizer", " biogpt "},
    {"BlenderbotSmallTokenizer", " blenderbot-small "},
    {"BlenderbotTokenizer", " blenderbot "},
    {"CLIPTokenizer", " aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip "},
    {"CTRLTokenizer", " ctrl "},
    {"CamembertTokenizer", " camembert "},
    {"CanineTokenizer", " canine "},
    {"ClvpTokenizer", " clvp "},
    {"CohereTokenizer", " aya_vision cohere cohere2 "},
    {"CpmAntTokenizer", " cpmant "},
    {"DPRQuestionEncoderTokenizer", " dpr "},
    {"DebertaTokenizer", " deberta "},
    {"DebertaV2Tokenizer", " deberta-v2 "},
    {"DiaTokenizer", " dia "},
    {"EsmTokenizer", " esm "},
    {"EsmcTokenizer", " esmc esmfold2 "},
    {"FNetTokenizer", " fnet "},
    {"FSMTTokenizer", " fsmt "},
    {"FlaubertTokenizer", " flaubert "},
    {"FunnelTokenizer", " funnel "},
    {"GPT2Tokenizer",
     " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo "
     "jais2 opt phi starcoder2 "},
    {"GPTNeoXJapaneseTokenizer", " gpt_neox_japanese "},
    {"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {"GPTSw3Tokenizer", " gpt-sw3 "},
    {"GemmaTokenizer",
     " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 "
     "t5gemma zaya "},
    {"LEDTokenizer", " led "},
    {"LasrTokenizer", " lasr_ctc lasr_encoder "},
    {"LayoutLMv2Tokenizer", " layoutlmv2 "},
    {"LayoutLMv3Tokenizer", " layoutlmv3 "},
    {"LayoutXLMTokenizer", " layoutxlm "},
    {"LlamaTokenizer", " idefics idefics2 "},
    {"LukeTokenizer", " luke "},
    {"LxmertTokenizer", " lxmert "},
    {"M2M100Tokenizer", " m2m_100 "},
    {"MBartTokenizer", " mbart "},
    {"MPNetTokenizer", " mpnet "},
    {"MarianTokenizer", " marian "},
    {"MarkupLMTokenizer", " markuplm "},
    {"MgpstrTokenizer", " mgp-str "},
    {"MobileBertTokenizer", " mobilebert "},
    {"MvpTokenizer", " mvp "},
    {"NllbTokenizer", " nllb-moe "},
    {"NougatTokenizer", " nougat pp_formulanet "},
    {"OpenAIGPTTokenizer", " openai-gpt "},
    {"PLBartTokenizer", " plbart "},
    {"ParakeetTokenizer",
     " granite_speech5_ctc nemotron3_5_asr nemotron_asr_streaming omniasr_ctc parakeet_ctc parakeet_rnnt "
     "parakeet_tdt "},
    {"PegasusTokenizer", " pegasus "},
    {"PerceiverTokenizer", " perceiver "},
    {"ProphetNetTokenizer", " prophetnet "},
    {"Qwen2Tokenizer",
     " audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr "
     "moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe "
     "qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice "},
    {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    {"RagTokenizer", " rag "},
    {"ReformerTokenizer", " reformer "},
    {"RemBertTokenizer", " rembert "},
    {"RoCBertTokenizer", " roc_bert "},
    {"RoFormerTokenizer", " roformer "},
    {"RobertaTokenizer",
     " bart bridgetower clap data2vec-text ibert lilt longformer mra roberta roberta-prelayernorm "},
    {"SeamlessM4TTokenizer", " seamless_m4t seamless_m4t_v2 "},
    {"Siglip2Tokenizer", " siglip2 "},
    {"SiglipTokenizer", " siglip "},
    {"Speech2TextTokenizer", " speech_to_text "},
    {"SpeechT5Tokenizer", " speecht5 "},
    {"SplinterTokenizer", " splinter "},
    {"T5Tokenizer", " mt5 musicgen musicgen_melody switch_transformers t5 "},
    {"TapasTokenizer", " tapas "},
    {"Tipsv2Tokenizer", " tipsv2 "},
    {"UdopTokenizer", " udop "},
    {"VideoPrismTokenizer", " videoprism "},
    {"VitsTokenizer", " vits "},
    {"Wav2Vec2CTCTokenizer",
     " data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer "},
    {"WhisperTokenizer", " whisper "},
    {"XGLMTokenizer", " xglm "},
    {"XLMRobertaTokenizer", " gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod "},
    {"XLMTokenizer", " xlm "},
    {"XLNetTokenizer", " xlnet "},
}};

/// Model types whose folders name a wrong class: theirs is taken.
constexpr std::string_view wrongly_named =
    " arctic camembertv2-base chatlm cohere_asr ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax "
    "hyperclovax_vision_v2 hyperclovax_vlm internlm2 internlm3 iquestcoder jamba llava llava_next "
    "minicpm3 minicpmv minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua "
    "openvla paddleocr_vl phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2 "
    "smolvlm step3_vl vipllava ";

std::string_view class_of_model(std::string_view model_type) {
  const auto has = [&](const ModelTypes& row) { return has_word(row.model_types, model_type); };
  const auto* const found = std::ranges::find_if(tokenizers_of_models, has);
  return found == tokenizers_of_models.end() ? std::string_view() : found->tokenizer_class;
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
    const bool is_wrong = has_word(wrongly_named, names.model_type);
    if (named == "LlamaTokenizer" && names.is_byte_level && !is_wrong) return "";
    if (!of_model.empty() && of_model != named) {
      if (of_model == backend) return "";
      if (is_wrong) chosen = of_model;
    }
  }
  return keeps_steps(chosen) ? "" : std::string(chosen);
}

}  // namespace llmtrain
