#pragma once
// Chat templates: the Jinja text of a model folder, rendered as Transformers' apply_chat_template renders it.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/conversation.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

namespace jinja {
struct Template;
}

/// Bytes that come from one message of a conversation.
struct MessageRange {
  TextRange range;
  size_t message;
  bool is_role;  ///< from nothing but its role
};

/// A rendered conversation. Ranges are bytes of the text, in order and apart.
struct RenderedChat {
  std::string text;
  std::vector<TextRange> content;    ///< from the row; special tokens in it are not the template's
  std::vector<TextRange> generated;  ///< inside generation blocks; those of neighbours are not joined
  std::vector<MessageRange> messages;
};

struct ChatRenderOptions {
  bool add_generation_prompt = false;
  int64_t now = -1;  ///< seconds since 1970 for strftime_now, in UTC; -1: the clock, in local time
};

/// Variables of a template besides the conversation: bos_token, eos_token, enable_thinking ...
using ChatVariables = std::vector<std::pair<std::string, nlohmann::ordered_json>>;

class ChatTemplate {
 public:
  /// `name` is for messages, such as the file's path. UserError(bad_content) "name:line: message".
  ChatTemplate(std::string_view source, const std::string& name);

  /// Throws UserError(bad_content) where the template raises, where it does not end, and for a conversation that
  /// Transformers refuses: without messages, or with messages that are not objects.
  RenderedChat render(const Conversation& conversation, const ChatVariables& variables,
                      const ChatRenderOptions& options = {}) const;
  bool has_generation() const;  ///< True if the template marks what the model generates
  const std::string& name() const;

 private:
  std::shared_ptr<const jinja::Template> template_;
};

/// A template in a model folder. The one named "default" is used unless a row has tools and there is a "tool_use".
struct ChatTemplateFile {
  std::string name;
  std::string source;
  std::string path;  ///< for messages
};

/// Name of the default template, and of the file that has it in the folder of a model.
inline constexpr const char* default_template = "default";
inline constexpr const char* chat_template_file = "chat_template.jinja";
inline constexpr const char* chat_template_folder = "additional_chat_templates";  ///< of templates with other names

/// The templates of a run and the texts of its special tokens, which all ranks share and checkpoints keep.
struct ChatFiles {
  std::vector<ChatTemplateFile> templates;
  ChatVariables variables;
};
inline constexpr const char* stored_chat_name = "chat.json";  ///< serialize(ChatFiles) in a checkpoint
std::string serialize(const ChatFiles& files);
/// Restores the result of serialize(). UserError(bad_content) "place: message".
ChatFiles parse_chat_files(std::string_view text, const std::string& place);

/// Returns the templates of a model folder: chat_template.jinja and the files in additional_chat_templates, otherwise
/// "chat_template" in tokenizer_config.json, a text or a list with names; or those that a checkpoint stores. Empty if
/// it has none. UserError(bad_content).
std::vector<ChatTemplateFile> read_chat_templates(const std::string& folder);

/// Returns the named special tokens of a model folder as variables, as Transformers' special_tokens_map has them:
/// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token, and those of the model: other names
/// that end with _token, and the names in extra_special_tokens and model_specific_special_tokens. Null where a file
/// says that there is none. UserError(bad_content).
ChatVariables read_special_tokens(const std::string& folder);

}  // namespace llmtrain
