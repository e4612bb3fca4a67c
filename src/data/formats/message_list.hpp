#pragma once
// Messages and tools in the columns of a row, as Transformers' apply_chat_template takes them.

#include "data/formats/row_format.hpp"

namespace llmtrain {

/// Roles of the keys of a message, which a format with messages has.
inline constexpr RowRole message_role{"role", {"role", "from"}, RowRole::Place::in_message};
inline constexpr RowRole message_content{"content", {"content", "value"}, RowRole::Place::in_message};

/// Returns true for a role that only messages of sharegpt have.
bool is_sharegpt_role(std::string_view role);

/// Returns the message with its keys in their order, those of its role and content renamed, without others that are
/// null. Content is a text, a list of parts of text, or null beside tool_calls. The flags weight, train and loss_weight
/// become turn_flag. Throws UserError.
nlohmann::ordered_json read_message(const RowView& row, const OrderedJsonNode& message);

/// Returns the messages of a column; there is at least one.
nlohmann::ordered_json read_messages(const RowView& row, std::string_view role);

/// Joins a prompt and a completion, two texts or two lists of messages, whose roles are these.
InstructionRow read_divided(const RowView& row, std::string_view prompt, std::string_view completion);

/// Returns the column of tools: a list, or JSON text of a list; null if there is none.
nlohmann::ordered_json read_tools(const RowView& row);

/// Puts the text of the column `system` before messages that have no system message of their own.
void add_system(const RowView& row, nlohmann::ordered_json& messages);

nlohmann::ordered_json make_message(std::string_view role, std::string content);

/// Refuses messages without an assistant's; `first`: of those from here on.
void require_assistant(const RowView& row, const nlohmann::ordered_json& messages, size_t first = 0);

}  // namespace llmtrain
