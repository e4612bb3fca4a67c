#pragma once
// Signs in encoded rows of instruction data that training on them would not teach what is meant.

#include <string>
#include <string_view>
#include <vector>

#include "data/files/text_source.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

inline constexpr int64_t few_rows = 50;  ///< a model learns fewer rows by heart

/// Adds texts like <|im_start|> that the template wrote in this row, and that are several tokens, once each.
void find_split_tokens(const EncodedRow& row, std::vector<std::string>& split);

/// Returns what is wrong with a template that writes such a text.
std::string split_token_warning(const std::string& text);

/// Encodes the first rows of each file of instruction data and returns warnings. Rows that cannot be read are omitted.
std::vector<std::string> lint_first_rows(const std::vector<InputFile>& files, const ChatEncoder& encoder);

/// True if the rows of a file are conversations, or prompts and completions, rather than texts.
bool has_conversations(const std::vector<InputFile>& files);
/// Wrapping is meant for texts; TRL, too, allows it for conversations.
inline constexpr std::string_view wrapped_conversations_warning =
    "data.packing = wrap cuts conversations where a sample ends, so that some answers are trained without their "
    "question: best_fit keeps each conversation whole";

}  // namespace llmtrain
