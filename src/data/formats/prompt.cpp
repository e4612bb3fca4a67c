// Rows of prompts, as TRL's trainers with rewards have them: {"prompt": "..."} or {"prompt": [{"role": "user",
// "content": "..."}]}, or {"messages": [...]}. All other columns belong to the rewards.

#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

bool ends_with_assistant(const Json& messages) { return messages.back()["role"] == "assistant"; }

/// A conversation without its last answer, as LLaMA-Factory takes prompts from conversations.
Json read_asked(const RowView& row) {
  Json messages = read_turns(row, "messages");
  if (ends_with_assistant(messages)) messages.erase(messages.size() - 1);
  if (messages.empty()) row.at("messages").refuse("has no turn before the assistant's: there is no prompt");
  return messages;
}

Json read_prompt_messages(const RowView& row) {
  const OrderedJsonNode prompt = row.at("prompt");
  if (!prompt.value().is_array()) prompt.refuse_value("a text or a list of messages");
  return read_turns(row, "prompt");
}

RowDocuments read_prompt(const RowView& row) {
  RowDocuments result;
  result.columns = row.other_columns();
  if (row.has("prompt") && row.at("prompt").value().is_string()) {
    result.documents.emplace_back(PromptCompletion{row.at("prompt").text(), ""});
    return result;
  }
  if (!row.has("prompt") && !row.has("messages")) row.at("prompt");  // refuses the row
  Conversation conversation;
  conversation.messages = row.has("prompt") ? read_prompt_messages(row) : read_asked(row);
  if (ends_with_assistant(conversation.messages)) {
    row.refuse("the prompt ends with a turn of the assistant: it must end with the turn that is to be answered");
  }
  add_system(row, conversation.messages);
  conversation.tools = read_tools_of_turns(row);
  conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size());
  result.documents.emplace_back(std::move(conversation));
  return result;
}

/// Rows of any format may have a prompt: tasks that need one name the format.
bool is_never_recognised(const RowView&) { return false; }

}  // namespace

const RowFormat& row_format_prompt() {
  static constexpr std::array roles = {RowRole{"prompt", {"prompt"}},
                                       RowRole{"messages", {"messages", "conversations"}},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       message_role,
                                       message_content};
  static const RowFormat format = {"prompt", roles, is_never_recognised, nullptr, read_prompt, 1, prompt_column};
  return format;
}

}  // namespace llmtrain
