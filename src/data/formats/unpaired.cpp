// Rows of a prompt, its completion and a label, as TRL's KTO has them: {"prompt": "...", "completion": "...", "label":
// true}. Prompt and completion are two texts or two lists of messages. As LLaMA-Factory has them, they are an
// instruction with its input and an output, or a list of messages whose last one is the answer, and the label can be
// "kto_tag".

#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

/// Returns 1 or 0; -1 for a value that is not a label.
int label_of(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number()) return -1;
  const auto number = value.get<double>();
  return number == 0 ? 0 : number == 1 ? 1 : -1;
}

/// Prompts and completions can have a label of another kind, such as the name of their topic; and rows of other columns
/// a number.
bool has_label(const RowView& row) {
  const auto& label = row.peek("label");
  const bool answers = row.has("completion") && (row.has("prompt") || row.has("query"));
  if (!answers && (row.has("completion") || !row.has("messages"))) return false;
  const bool usual = answers && row.column("prompt") == "prompt" && row.column("completion") == "completion";
  return usual || row.column("label") == "kto_tag" ? label_of(label) >= 0 : label.is_boolean();
}

/// A conversation whose last message is the answer.
InstructionRow read_answered(const RowView& row) {
  Conversation conversation;
  const bool alternates = has_alternating_turns(row, "messages");
  conversation.messages = alternates ? read_alternating_turns(row, "messages", true) : read_turns(row, "messages");
  require_assistant(row, conversation.messages, conversation.messages.size() - 1);
  add_system(row, conversation.messages);
  conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size()) - 1;
  conversation.tools = read_tools_of_turns(row);
  return conversation;
}

InstructionRow read_document(const RowView& row) {
  if (!row.has("completion") && row.has("messages")) return read_answered(row);
  return read_divided(row, "prompt", "completion");
}

RowDocuments read_unpaired(const RowView& row) {
  const OrderedJsonNode label = row.at("label");
  const int value = label_of(label.value());
  if (value < 0) label.refuse_value("true or false, or 1 or 0");
  RowDocuments result;
  result.value = static_cast<float>(value);
  result.documents.push_back(read_document(row));
  return result;
}

}  // namespace

const RowFormat& row_format_unpaired() {
  static constexpr std::array roles = {
      RowRole{"prompt", question_role.columns, RowRole::Place::usual},
      RowRole{"completion", {"completion", "output", "response", "answer"}, RowRole::Place::usual},
      RowRole{"label", {"label", "kto_tag"}, RowRole::Place::required},
      input_role,
      history_role,
      RowRole{"messages", {"messages", "conversations"}},
      RowRole{"system", {"system"}},
      RowRole{"tools", {"tools"}},
      message_role,
      message_content};
  static const RowFormat format = {"unpaired", roles, has_label, nullptr, read_unpaired, 1, "label"};
  return format;
}

}  // namespace llmtrain
