#pragma once
// From rows of instruction data to token ids and the mask of trained tokens.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/chat/chat_config.hpp"
#include "text/chat/chat_template.hpp"
#include "text/chat/conversation.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// A row as text, before its tokens.
struct ChatText {
  std::string text;
  std::vector<TextRange> content;  ///< bytes that come from the row
  std::vector<TextRange> trained;  ///< bytes whose tokens are trained, in order and apart
  size_t border = 0;               ///< between prompt and completion; 0: the row is not divided
  bool parses_special = false;     ///< special tokens in the content are tokens; otherwise they are text
};

/// A row as tokens. What encode() writes replaces what was there; one object serves many rows.
struct EncodedRow {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;      ///< 1 = trained on
  std::vector<TextRange> ranges;  ///< bytes of `text` of each token; empty for tokens that are added around it
  ChatText text;
  int64_t trained = 0;         ///< number of trained tokens
  bool merged_border = false;  ///< a token spans the border between prompt and completion, and is trained
  int32_t stop = -1;           ///< special token after the content of the last trained turn; -1: none is trained
  bool stops() const { return stop >= 0; }
};

/// Returns the templates that chat.template names: none for "none", those of the model's folder for "auto", else one.
/// UserError: deck (unknown name), missing_input, bad_content.
std::vector<ChatTemplateFile> find_chat_templates(const std::string& name, const std::string& folder);

/// Returns the templates that chat.template names: for "auto" those of the model's folder, or else of the tokenizer's;
/// and the special tokens of the tokenizer's folder, or else of the model's. Either folder may be empty, or gone.
/// UserError as of find_chat_templates.
ChatFiles read_chat_files(const std::string& name, const std::string& model_folder,
                          const std::string& tokenizer_folder = {});

/// Time of templates that ask for it in training: 26 July 2024, which Llama 3's names where it has no clock. A run must
/// give the same tokens on any day.
inline constexpr int64_t training_time = 1'721'952'000;

/// Encodes rows for one model. Threads can share it.
class ChatEncoder {
 public:
  /// Throws UserError(bad_content) "file:line: message". `now` is the time of strftime_now in seconds since 1970, -1 =
  /// the clock when a row is rendered.
  ChatEncoder(const Tokenizer& tokenizer, const ChatConfig& config, const ChatFiles& files, int64_t now = -1);
  /// Reads the files of a folder, which may be empty; throws also as read_chat_files does.
  ChatEncoder(const Tokenizer& tokenizer, const ChatConfig& config, const std::string& folder, int64_t now = -1)
      : ChatEncoder(tokenizer, config, read_chat_files(config.template_name, folder), now) {}

  /// Special tokens are tokens in texts, which no template renders, and text in the content of messages unless
  /// chat.parse_special. Throws UserError(bad_content) for a row that the template refuses, that has no trained turn,
  /// or whose mask cannot be found; the message does not name the row.
  void encode(const InstructionRow& row, EncodedRow& encoded) const;
  /// Encodes a prompt alone: messages through the template, with the header that an answer follows; a text as the
  /// prompt of a row (its completion does not count). Nothing is trained. Throws as encode() does.
  void encode_prompt(const InstructionRow& row, EncodedRow& encoded) const;
  /// Returns the ids of a turn of the user and of the header that an answer follows; without a template, those of the
  /// prompt of a row. Throws as encode() does.
  std::vector<int32_t> encode_prompt(const std::string& text) const;

  bool has_template() const { return !templates_.empty(); }
  /// Names the template for the console: "chatml", a path, or "none".
  std::string template_name() const;
  /// Returns the special token that ends a turn of the assistant and is trained there, -1 if there is none or the
  /// template refuses a short conversation.
  int32_t stop_id() const;
  /// Everything but the tokenizer that the tokens of rows depend on, as text.
  std::string settings() const;

 private:
  ChatText render(const Conversation& row) const;
  struct Named {
    std::string name, source;
    ChatTemplate chat;
    bool reads_parts;  ///< its content can be a list of parts
  };
  const Named& choose(const Conversation& row) const;
  void encode_text(EncodedRow& encoded) const;
  void encode_plain(const InstructionRow& row, EncodedRow& encoded) const;
  void encode_alone(const std::string& prompt, EncodedRow& encoded) const;
  static void mark_trained(EncodedRow& encoded);
  void leave_out_space_after_stop(EncodedRow& encoded) const;
  void check_border(EncodedRow& encoded) const;
  int32_t find_stop(const EncodedRow& encoded) const;

  const Tokenizer& tokenizer_;
  ChatConfig config_;
  const int64_t now_;
  std::vector<Named> templates_;
  ChatVariables variables_;
};

struct ChatExport {
  std::map<std::string, std::string> templates;  ///< texts of the run's chat templates, by their file in a model folder
  bool replaces = false;                         ///< the deck names the template, so that the model's does not stay
  std::vector<int64_t> stop_ids;                 ///< tokens that the run teaches to end an answer
};

/// `files`: those of the run's ChatEncoder. UserError as of ChatEncoder.
ChatExport export_chat(const ChatConfig& config, const Tokenizer& tokenizer, const ChatFiles& files);

}  // namespace llmtrain
