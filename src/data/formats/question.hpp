#pragma once
// A question in columns of its own, as LLaMA-Factory and Orca have it: instruction and input, or question, or query,
// with the columns system, history and tools.

#include <string>

#include "data/formats/row_format.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
