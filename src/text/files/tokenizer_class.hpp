#pragma once
// Tokenizer classes of Transformers that supply defaults for settings that the files of a folder omit.

#include <array>
#include <cstdint>
#include <string_view>

namespace llmtrain {

/// Tokens with a role, in the order in which Transformers adds those that the vocabulary lacks.
inline constexpr std::array<std::string_view, 7> token_keys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                               "pad_token", "cls_token", "mask_token"};

struct TokenizerClass {
  /// Effect of add_prefix_space in tokenizer_config.json.
  enum class Prefix : uint8_t {
    none,        ///< no effect: tokenizer.json decides
    byte_level,  ///< sets ByteLevel in tokenizer.json; false if absent
    metaspace,   ///< sets the U+2581 before the text; if absent, tokenizer.json decides
  };
  std::string_view name;
  Prefix prefix = Prefix::none;
  std::array<std::string_view, token_keys.size()> tokens = {};  ///< empty: none

  std::string_view token(std::string_view key) const;
};

/// Finds the class by tokenizer_class, with or without "Fast"; other classes set nothing.
const TokenizerClass& find_tokenizer_class(std::string_view name);

}  // namespace llmtrain
