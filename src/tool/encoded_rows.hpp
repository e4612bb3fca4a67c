#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/formats/encode_documents.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

/// A row as a run of instruction tuning, preferences or rewards reads it.
struct EncodedLine {
  int64_t number = 0;                 ///< from 1
  std::vector<EncodedRow> documents;  ///< one, or two for a pair
  LeftOut left_out = LeftOut::no;     ///< why a run does not train on it
};

/// Calls work(row) for each row of a JSONL file, or of the standard input for "-", whose format is the first row's.
/// Rows with input_ids are as they are. Rows without documents, empty texts and conversations whose turns do not
/// alternate, are passed over. Returns notes for the user: how many these are, and columns of text that are not read.
/// Errors, those of `work` too, begin with the file and the line.
std::vector<std::string> for_each_encoded_row(const std::string& input, const TextFormat& rules,
                                              const Tokenizer& tokenizer, const ChatEncoder& encoder,
                                              const std::function<void(const EncodedLine&)>& work);

}  // namespace llmtrain
