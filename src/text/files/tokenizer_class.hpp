#pragma once
// Tokenizer classes of Transformers that set by themselves what the files of a folder leave out.

#include <array>
#include <cstdint>
#include <string_view>

namespace llmtrain {

/// Tokens with a meaning, in the order in which Transformers adds those that the vocabulary lacks.
inline constexpr std::array<std::string_view, 7> token_keys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                               "pad_token", "cls_token", "mask_token"};

struct TokenizerClass {
  /// What add_prefix_space of tokenizer_config.json changes.
  enum class Prefix : uint8_t {
    none,        ///< nothing: tokenizer.json says it
    byte_level,  ///< ByteLevel of tokenizer.json; left out means false
    metaspace,   ///< the U+2581 before the text; left out, tokenizer.json says it
  };
  std::string_view name;
  Prefix prefix = Prefix::none;
  std::array<std::string_view, token_keys.size()> tokens = {};  ///< empty: none

  std::string_view token(std::string_view key) const;
};

/// By tokenizer_class, with or without "Fast"; one that sets nothing for others.
const TokenizerClass& find_tokenizer_class(std::string_view name);

}  // namespace llmtrain
