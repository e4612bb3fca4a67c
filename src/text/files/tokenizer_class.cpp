#include "text/files/tokenizer_class.hpp"

#include <algorithm>

namespace llmtrain {
namespace {

using Prefix = TokenizerClass::Prefix;

constexpr std::string_view end_of_text = "<|endoftext|>";

constexpr std::array<TokenizerClass, 9> classes = {{
    {"", Prefix::none},
    {"GPT2Tokenizer", Prefix::byte_level, {end_of_text, end_of_text, end_of_text}},
    {"GPTNeoXTokenizer", Prefix::byte_level, {end_of_text, end_of_text, end_of_text, "", "<|padding|>"}},
    {"Qwen2Tokenizer", Prefix::byte_level, {"", end_of_text, end_of_text, "", end_of_text}},
    {"Qwen3_5Tokenizer", Prefix::byte_level, {"", end_of_text, end_of_text, "", end_of_text}},
    {"CohereTokenizer",
     Prefix::byte_level,
     {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>", "<MASK_TOKEN>"}},
    {"RobertaTokenizer", Prefix::byte_level, {"<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"}},
    {"LlamaTokenizer", Prefix::metaspace, {"<s>", "</s>", "<unk>"}},
    {"GemmaTokenizer", Prefix::none, {"<bos>", "<eos>", "<unk>", "", "<pad>", "", "<mask>"}},
}};

}  // namespace

std::string_view TokenizerClass::token(std::string_view key) const {
  const auto place = std::ranges::find(token_keys, key) - token_keys.begin();
  return tokens[static_cast<size_t>(place)];
}

const TokenizerClass& find_tokenizer_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  const auto found = std::ranges::find(classes, name, &TokenizerClass::name);
  return found == classes.end() ? classes.front() : *found;
}

}  // namespace llmtrain
