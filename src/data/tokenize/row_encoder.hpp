#pragma once
// Tokens of rows of instruction data.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/chat/chat_config.hpp"
#include "text/chat/conversation.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct RowTokens {
  std::vector<int32_t> ids;    ///< with BOS and the stop token, if there are any
  std::vector<uint8_t> mask;   ///< 1 = trained on as a target; as many as ids
  bool merged_border = false;  ///< the border of prompt and completion lies inside a token
};

/// Renders and encodes rows; immutable, so that threads can share one.
class RowEncoder {
 public:
  virtual ~RowEncoder() = default;
  /// Throws UserError(bad_content) without file and line for a row that the template refuses.
  virtual RowTokens encode(const InstructionRow& row) const = 0;
  /// True if a template renders conversations; without one, rows must be texts.
  virtual bool has_template() const = 0;
  /// Everything but the tokenizer that the tokens depend on, which is part of the key of cached token files.
  virtual std::string settings() const = 0;
};

/// Makes the encoder of a tokenizer.
using MakeRowEncoder = std::function<std::unique_ptr<const RowEncoder>(const std::shared_ptr<const Tokenizer>&)>;

/// Encoders of [chat]; `folder` is the model's or tokenizer's, where templates are read; it may be empty.
MakeRowEncoder make_chat_encoder(const ChatConfig& config, const std::string& folder);

}  // namespace llmtrain
