// Rows of messages as the OpenAI interface and TRL have them: {"messages": [{"role": "user", "content": "..."}, ...]},
// optionally with "tools". Whether roles must alternate is the template's decision.

#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

/// Judges by the first message: rows of sharegpt can have the same columns.
bool is_list_of_messages(const RowView& row) {
  const OrderedJsonNode list = row.at("messages");
  if (!list.value().is_array() || list.size() == 0) return list.value().is_array();
  const OrderedJsonNode first = list.at(size_t{0});
  if (!first.value().is_object() || !first.has(row.key_in(first, "role"))) return false;
  const auto& role = first.at(row.key_in(first, "role")).value();
  return !role.is_string() || !is_sharegpt_role(role.get_ref<const std::string&>());
}

InstructionRow read_conversation(const RowView& row) {
  Conversation conversation;
  conversation.messages = read_messages(row, "messages");
  require_assistant(row, conversation.messages);
  add_system(row, conversation.messages);
  conversation.tools = read_tools(row);
  return conversation;
}

}  // namespace

const RowFormat& row_format_messages() {
  static constexpr std::array roles = {RowRole{"messages", {"messages", "conversations"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       RowRole{"role", {"role"}, RowRole::Place::in_message},
                                       RowRole{"content", {"content"}, RowRole::Place::in_message},
                                       difficulty_role};
  static const RowFormat format = {"messages", roles, is_list_of_messages, read_conversation};
  return format;
}

}  // namespace llmtrain
