// Rows of a prompt and its completion, as TRL has them: both are texts, or both are lists of messages. Two texts beside
// a system message are the turns of a conversation.

#include <fmt/format.h>

#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {

InstructionRow read_divided(const RowView& row, std::string_view prompt_role, std::string_view completion_role) {
  const OrderedJsonNode completion = row.at(completion_role);
  if (completion.value().is_string() && has_question(row)) return with_answer(read_question(row), completion.text());
  const OrderedJsonNode prompt = row.at(prompt_role);
  if (prompt.value().is_string() && completion.value().is_string()) {
    return PromptCompletion{prompt.text(), completion.text()};
  }
  if (!prompt.value().is_array() || !completion.value().is_structured()) {
    row.refuse(fmt::format("{} and {} must be two texts or two lists of messages, not {} and {}", prompt.where(),
                           completion.where(), printable_value(prompt.value()), printable_value(completion.value())));
  }
  Conversation conversation;
  conversation.messages = read_turns(row, prompt_role);
  add_system(row, conversation.messages);
  conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size());
  for (auto& message : read_turns(row, completion_role)) conversation.messages.push_back(std::move(message));
  require_assistant(row, conversation.messages, static_cast<size_t>(conversation.prompt_messages));
  conversation.tools = read_tools_of_turns(row);
  return conversation;
}

namespace {

InstructionRow read_prompt_completion(const RowView& row) { return read_divided(row, "prompt", "completion"); }

}  // namespace

const RowFormat& row_format_prompt_completion() {
  static constexpr std::array roles = {RowRole{"prompt", {"prompt"}, RowRole::Place::required},
                                       RowRole{"completion", {"completion"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       message_role,
                                       message_content,
                                       difficulty_role};
  static const RowFormat format = {"prompt_completion", roles, nullptr, read_prompt_completion};
  return format;
}

}  // namespace llmtrain
