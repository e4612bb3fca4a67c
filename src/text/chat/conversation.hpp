#pragma once
// A row of instruction data in the form that chat templates and encoders take, whatever its file's format.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

namespace llmtrain {

/// Key of a message that says whether it is trained, true or false. No template sees it.
inline constexpr const char* turn_flag = "train";

/// Messages as Transformers' apply_chat_template takes them.
struct Conversation {
  /// Objects with at least "role" and "content", maybe with turn_flag.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nullptr;  ///< an array of JSON schemas, or null
  int64_t prompt_messages = -1;  ///< number of leading messages that form the prompt; -1: the row does not divide them
};

/// A prompt and its completion as plain texts.
struct PromptCompletion {
  std::string prompt;
  std::string completion;
};

/// A document of plain text.
struct PlainText {
  std::string text;
};

using InstructionRow = std::variant<PlainText, PromptCompletion, Conversation>;

}  // namespace llmtrain
