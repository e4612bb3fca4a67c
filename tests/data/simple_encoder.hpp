#pragma once
// An encoder of conversations without a template.

#include <memory>
#include <string>

#include "core/error.hpp"
#include "data/tokenize/row_encoder.hpp"

namespace llmtrain::test {

/// Writes turns as <role>content; and trains on what the assistant says; texts as they are, with EOS.
class SimpleEncoder final : public RowEncoder {
 public:
  SimpleEncoder(std::shared_ptr<const Tokenizer> tokenizer, bool templated, std::string settings)
      : tokenizer_(std::move(tokenizer)), templated_(templated), settings_(std::move(settings)) {}

  RowTokens encode(const InstructionRow& row) const override {
    RowTokens encoded;
    const auto add = [&](const std::string& text, bool trained) {
      tokenizer_->encode(text, encoded.ids);
      encoded.mask.resize(encoded.ids.size(), trained ? 1 : 0);
    };
    if (const auto* texts = std::get_if<PromptCompletion>(&row)) {
      add(texts->prompt, false);
      add(texts->completion, true);
      encoded.merged_border = texts->prompt.ends_with(' ');
      encoded.ids.push_back(tokenizer_->eos_id());
      encoded.mask.push_back(1);
      return encoded;
    }
    for (const auto& message : std::get<Conversation>(row).messages) {
      const std::string role = message["role"], content = message["content"];
      if (content == "refused") throw UserError(ExitCode::bad_content, "the template refuses this");
      add("<" + role.substr(0, 1) + ">", false);
      add(content + ";", role == "assistant" && content != "silent");
    }
    return encoded;
  }
  bool has_template() const override { return templated_; }
  std::string settings() const override { return settings_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool templated_;
  std::string settings_;
};

}  // namespace llmtrain::test
