#include "data/tokenize/row_encoder.hpp"

#include <utility>

#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

namespace {

/// 26 July 2024, the day that Llama 3's template names without a clock. A run must give the same tokens on any day.
constexpr int64_t template_clock = 1'721'952'000;

class ChatRowEncoder : public RowEncoder {
 public:
  ChatRowEncoder(std::shared_ptr<const Tokenizer> tokenizer, const ChatConfig& config, const std::string& folder)
      : tokenizer_(std::move(tokenizer)), encoder_(*tokenizer_, config, folder, template_clock) {}

  RowTokens encode(const InstructionRow& row) const override {
    EncodedRow encoded;
    encoder_.encode(row, encoded);
    return {std::move(encoded.ids), std::move(encoded.mask), encoded.merged_border};
  }
  bool has_template() const override { return encoder_.has_template(); }
  std::string settings() const override { return encoder_.settings(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatEncoder encoder_;
};

}  // namespace

MakeRowEncoder make_chat_encoder(const ChatConfig& config, const std::string& folder) {
  return [config, folder](const std::shared_ptr<const Tokenizer>& tokenizer) {
    return std::make_unique<ChatRowEncoder>(tokenizer, config, folder);
  };
}

}  // namespace llmtrain
