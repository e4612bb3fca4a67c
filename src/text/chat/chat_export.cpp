#include "text/chat/chat_export.hpp"

#include <fmt/format.h>

#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

ChatExport export_chat(const ChatConfig& config, const Tokenizer& tokenizer, const ChatFiles& files) {
  ChatExport chat;
  for (const ChatTemplateFile& file : files.templates) {
    const bool is_default = file.name == default_template;
    const std::string path =
        is_default ? chat_template_file : fmt::format("{}/{}.jinja", chat_template_folder, file.name);
    chat.templates[path] = file.source;
  }
  chat.replaces = config.template_name != "auto" && config.template_name != "none";
  const ChatEncoder encoder(tokenizer, config, files);
  const int32_t stop = encoder.has_template() ? encoder.stop_id() : tokenizer.eos_id();
  if (stop >= 0) chat.stop_ids.push_back(stop);
  return chat;
}

}  // namespace llmtrain
