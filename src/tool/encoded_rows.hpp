#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/formats/encode_documents.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

/// Calls work(line, documents) for each row of a JSONL file, or of the standard input for "-", whose format is the
/// first row's: a document, or two for a pair. Errors, those of `work` too, begin with the file and the line.
void for_each_encoded_row(const std::string& input, const TextFormat& rules, const ChatEncoder& encoder,
                          const std::function<void(int64_t line, const std::vector<EncodedRow>& documents)>& work);

}  // namespace llmtrain
