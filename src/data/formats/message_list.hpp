#pragma once
// Messages and tools in the columns of a row, as Transformers' apply_chat_template takes them.

#include <string>

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

// A question in columns of its own, as LLaMA-Factory and Orca have it: instruction and input, or question, or query,
// with the columns system, history and tools.

/// Roles of a format that has them; `prompt` can be one formatted text, too.
inline constexpr RowRole question_role{"prompt", {"prompt", "instruction", "question", "query"}};
inline constexpr RowRole input_role{"query", {"input"}};
inline constexpr RowRole history_role{"history", {"history"}};

/// Returns true for a row whose columns hold the contents of turns before the answer, which a template renders: not the
/// one text of the column prompt, or of another one that data.columns names, unless a system message, a history or an
/// input that is not in it stands beside it.
bool has_question(const RowView& row);

/// Returns the messages before the answer: system, history, and the user's turn.
nlohmann::ordered_json read_question_messages(const RowView& row);

/// Returns these turns as a prompt: a conversation, or, for rows without a template, a text with one line each.
InstructionRow read_question(const RowView& row);

/// Returns a prompt with the answer to it.
InstructionRow with_answer(InstructionRow question, const std::string& answer);

// Turns with the roles of LLaMA-Factory's sharegpt format: human, gpt, function_call, observation. Columns are given by
// their role.

/// Returns the messages of a column with the roles of Transformers. Turns of human or observation and of gpt or
/// function_call alternate after a system message; the last one is an answer if `answered`, otherwise a question.
/// Throws LeftOutRow for others, as LLaMA-Factory leaves them out.
nlohmann::ordered_json read_alternating_turns(const RowView& row, std::string_view column, bool answered);

/// True for a list of messages of which one has a role that only sharegpt has, or names its role in "from".
bool has_alternating_turns(const RowView& row, std::string_view column);

/// Returns the messages of a column, or its single one, whichever roles they have.
nlohmann::ordered_json read_turns(const RowView& row, std::string_view column);

/// Returns the column of tools, of which each can be the schema of a function alone.
nlohmann::ordered_json read_tools_of_turns(const RowView& row);

}  // namespace llmtrain
