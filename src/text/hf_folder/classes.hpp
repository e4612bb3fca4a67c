#pragma once
// Tokenizer classes of Transformers: the class of a folder, and its settings that override the files of the folder.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace llmtrain {

/// Tokens with a role, in the order in which Transformers adds those that the vocabulary lacks.
inline constexpr std::array<std::string_view, 7> token_keys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                               "pad_token", "cls_token", "mask_token"};

/// GPT-2's steps, which most classes have.
inline constexpr std::string_view byte_level =
    R"({"type":"ByteLevel","add_prefix_space":"$add_prefix_space","trim_offsets":true,"use_regex":true})";
inline constexpr std::string_view byte_level_decoder =
    R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";

/// A class keeps the steps of tokenizer.json, or makes its own from tokenizer.json's vocabulary and merges.
struct TokenizerClass {
  enum class Steps : uint8_t {
    kept,
    own,      ///< those below
    unknown,  ///< its own, which this program does not support
  };
  /// Special tokens around a text.
  struct Around {
    bool own = false;                          ///< otherwise tokenizer.json's post_processor is used
    std::string_view before = {}, after = {};  ///< keys of tokens; empty: none
    bool trims = false;                        ///< excludes white space from offsets, like trim_offsets
  };
  /// Second addition of named and extra tokens, which can change their flags.
  enum class Named : uint8_t {
    once,
    again_plain,  ///< without flags
    again,        ///< with the flags of the file that names them
  };
  std::string_view name;
  Steps steps = Steps::own;
  std::array<std::string_view, token_keys.size()> tokens = {};  ///< texts of token_keys; empty: none
  std::string_view settings =
      R"({"add_prefix_space":false})";  ///< keys of tokenizer_config.json that the steps use, and their defaults
  // JSON as in tokenizer.json. "$name" is a setting; {"$if": a setting, "then": step, "else": step} is one of two. The
  // model is without vocabulary and merges.
  std::string_view model = R"({"type":"BPE"})", normalizer = "null", pre_tokenizer = byte_level,
                   decoder = byte_level_decoder;
  Around around = {};
  Named named = Named::once;
  std::array<std::pair<std::string_view, std::string_view>, 5> more_tokens = {};  ///< keys and texts

  std::string_view token(std::string_view key) const;
};

/// Finds a class by `name`, with or without "Fast"; unknown names keep the steps.
const TokenizerClass& find_tokenizer_class(std::string_view name);

inline constexpr std::string_view byte_level_step = "\"ByteLevel\"";  ///< in the text of a tokenizer.json

/// Names of classes in the files of a folder.
struct NamedClasses {
  std::string tokenizer_class;  ///< in tokenizer_config.json
  std::string model_class;      ///< tokenizer_class in config.json
  std::string model_type;       ///< in config.json
  bool has_code = false;        ///< True if tokenizer_config.json names custom code (auto_map)
  bool is_byte_level = false;   ///< True if tokenizer.json has a step ByteLevel
};

/// Returns the class that AutoTokenizer uses, without "Fast"; empty: only tokenizer.json counts.
std::string choose_tokenizer_class(const NamedClasses& names);

}  // namespace llmtrain
