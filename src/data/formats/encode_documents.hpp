#pragma once
// From the documents of a row to tokens.

#include <vector>

#include "data/formats/row_format.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

/// Replaces `encoded`. Both documents of a pair have the same prompt: where a token joins the end of the prompt and the
/// begin of one answer, both answers begin there, as in TRL. Throws as ChatEncoder::encode does.
void encode_documents(const ChatEncoder& encoder, const RowDocuments& row, std::vector<EncodedRow>& encoded);

/// Why a row is not trained on: an answer is empty, both are equal, or no token is a target.
enum class LeftOut : uint8_t { no, empty, equal, untrained };
/// `preferences`: the row is a pair, or has a label. A prompt is never left out.
LeftOut left_out_of_training(const RowDocuments& row, const std::vector<EncodedRow>& encoded, bool preferences);

}  // namespace llmtrain
