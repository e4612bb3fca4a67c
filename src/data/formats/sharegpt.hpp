#pragma once
// Turns with the roles of LLaMA-Factory's sharegpt format: human, gpt, function_call, observation. Columns are given by
// their role.

#include "data/formats/message_list.hpp"

namespace llmtrain {

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
