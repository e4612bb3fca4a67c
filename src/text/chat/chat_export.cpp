#include "text/chat/chat_export.hpp"

#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

ChatExport export_chat(const ChatConfig& config, const Tokenizer& tokenizer, const std::string& folder) {
  ChatExport chat;
  const std::string& name = config.template_name;
  if (name != "auto" && name != "none") chat.chat_template = find_chat_templates(name, "").front().source;
  const ChatEncoder encoder(tokenizer, config, folder);
  const int32_t stop = encoder.has_template() ? encoder.stop_id() : tokenizer.eos_id();
  if (stop >= 0) chat.stop_ids.push_back(stop);
  return chat;
}

}  // namespace llmtrain
