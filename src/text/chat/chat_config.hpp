#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "text/chat/chat_template.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [chat]: how conversations become text, and which of their tokens are trained.
struct ChatConfig {
  enum class TrainOn : uint8_t { automatic, completion, assistant, last, all };
  enum class Thinking : uint8_t { automatic, on, off };

  std::string template_name = "auto";  ///< auto, none, a name, or a Jinja file
  std::string system;                  ///< empty: the template's own
  TrainOn train_on = TrainOn::automatic;
  Thinking enable_thinking = Thinking::automatic;
  std::vector<std::string> variables;  ///< "name:value"
  bool parse_special = false;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
  /// Returns enable_thinking and the variables. A value is JSON (true, 3, null) if it can be, else text. Throws
  /// UserError(deck) for an entry without a name, or with the name of a variable that rows set.
  ChatVariables template_variables() const;
};

template <>
inline constexpr auto enum_names<ChatConfig::TrainOn> = name_list("auto", "completion", "assistant", "last", "all");
template <>
inline constexpr auto enum_names<ChatConfig::Thinking> = name_list("auto", "true", "false");

}  // namespace llmtrain
