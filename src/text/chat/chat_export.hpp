#pragma once
// Facts about a run's conversations that its exported model carries.

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat/chat_config.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct ChatExport {
  std::string chat_template;      ///< Jinja that the deck names instead of the model's; empty: the model's own stays
  std::vector<int64_t> stop_ids;  ///< tokens that the run teaches to end an answer
};

/// `folder` is the one that ChatEncoder reads. UserError as of ChatEncoder.
ChatExport export_chat(const ChatConfig& config, const Tokenizer& tokenizer, const std::string& folder);

}  // namespace llmtrain
