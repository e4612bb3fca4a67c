#pragma once
// Facts about a run's conversations that its exported model carries.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/chat/chat_config.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct ChatExport {
  std::map<std::string, std::string> templates;  ///< texts of the run's chat templates, by their file in a model folder
  bool replaces = false;                         ///< the deck names the template, so that the model's does not stay
  std::vector<int64_t> stop_ids;                 ///< tokens that the run teaches to end an answer
};

/// `files`: those of the run's ChatEncoder. UserError as of ChatEncoder.
ChatExport export_chat(const ChatConfig& config, const Tokenizer& tokenizer, const ChatFiles& files);

}  // namespace llmtrain
