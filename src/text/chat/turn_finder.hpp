#pragma once
// Finds the turns of a rendered conversation: the bytes that a model generates for a message.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "text/chat/chat_template.hpp"
#include "text/chat/conversation.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

bool is_assistant(const nlohmann::ordered_json& message);

/// What the text of a row depends on beside the row.
struct ChatRendering {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  const ChatVariables& variables;
  int64_t now;  ///< as ChatRenderOptions::now
};

/// Finds the turns of one row. Where the text before a turn is what the template renders of the messages before it, the
/// turn begins after that. Templates that render a beginning otherwise, which drop earlier reasoning for example, have
/// their turns found by the bytes that come from each message. Errors are UserError(bad_content) with the template's
/// name.
class TurnFinder {
 public:
  /// `row` and `whole`, its rendering, must outlive the finder.
  TurnFinder(const ChatRendering& rendering, const Conversation& row, const RenderedChat& whole)
      : rendering_(rendering), row_(row), whole_(whole) {}

  /// Returns the bytes of a message: of an assistant what its generation blocks mark, or else what follows its header,
  /// with the text that ends the turn, in several ranges where answers of tools lie inside; of others what comes from
  /// the message, with the text that ends the turn.
  std::vector<TextRange> find(size_t message);
  /// Returns the bytes of these messages. An opener of reasoning in the prompt of generation that one of the turns
  /// lacks is trained in all of them.
  std::vector<TextRange> find(const std::vector<size_t>& messages);
  /// Returns where a completion begins whose first message has this number.
  size_t find_border(size_t message);

 private:
  RenderedChat render(size_t messages, bool add_generation_prompt);
  std::vector<TextRange> find_blocks(size_t message);
  RenderedChat render(const Conversation& row, bool add_generation_prompt);
  std::vector<TextRange> find_turn(size_t message);
  std::optional<std::vector<TextRange>> find_call(size_t message);
  std::vector<TextRange> split_turn(size_t message, const TextRange& turn, const RenderedChat& through);
  size_t skip_header(size_t message, size_t begin);
  size_t last_inside(size_t message, const TextRange& turn) const;
  TextRange find_other(size_t message);
  std::optional<size_t> find_begin(size_t message, const RenderedChat& before, bool in_prompt);
  std::optional<TextRange> find_empty_turn(size_t message, bool in_prompt);
  size_t find_end(size_t message, size_t begin, const RenderedChat& through) const;
  size_t common_end(std::string_view alone, std::string_view followed) const;
  [[noreturn]] void fail_message(size_t message) const;

  const ChatRendering rendering_;
  const Conversation& row_;
  const RenderedChat& whole_;
  std::vector<size_t> owners_;  ///< message of each generation block
  bool answers_inside_ = true;  ///< until a call shows that answers of tools stand after its turn
  bool trains_opener_ = false;  ///< for header_length()
  size_t rendered_ = 0;         ///< bytes that were rendered to find turns
};

}  // namespace llmtrain
