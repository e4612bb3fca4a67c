// Rows of plain texts, which people formatted themselves: no template renders them, and their special tokens are
// tokens, as in TRL.

#include <algorithm>

#include "text/chat/chat_encoder.hpp"
#include "text/tokens_around.hpp"

namespace llmtrain {

void ChatEncoder::encode_plain(const InstructionRow& row, EncodedRow& encoded) const {
  ChatText& text = encoded.text;
  text = {};
  text.parses_special = true;
  if (const auto* pair = std::get_if<PromptCompletion>(&row)) {
    text.text = pair->prompt + pair->completion;
    if (config_.train_on != ChatConfig::TrainOn::all) text.border = pair->prompt.size();
  } else {
    text.text = std::get<PlainText>(row).text;
  }
  text.trained = {{text.border, text.text.size()}};
  encode_text(encoded);
  put_tokens_around(tokenizer_, {}, text.text.size(), text.border, encoded.ids, &encoded.ranges);
  const bool ended = !encoded.ids.empty() && encoded.ids.back() == tokenizer_.eos_id();
  text.content = {{0, ended ? encoded.ranges.back().begin : text.text.size()}};
  mark_trained(encoded);
  check_border(encoded);
  if (text.border == 0) std::ranges::fill(encoded.mask, uint8_t{1});
  if (ended) encoded.mask.back() = 1;
}

void ChatEncoder::encode_alone(const std::string& prompt, EncodedRow& encoded) const {
  encoded.text = {prompt, {{0, prompt.size()}}, {}, 0, true};
  encode_text(encoded);
  put_tokens_around(tokenizer_, {.ends = false}, prompt.size(), 0, encoded.ids, &encoded.ranges);
  encoded.mask.assign(encoded.ids.size(), 0);
}

}  // namespace llmtrain
