#include "text/chat/chat_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "text/chat/jinja/lexer.hpp"
#include "text/chat/named_templates.hpp"
#include "text/chat/turn_finder.hpp"

namespace llmtrain {

namespace {

using TrainOn = ChatConfig::TrainOn;
using nlohmann::ordered_json;

[[noreturn]] void fail_row(const std::string& message) { throw UserError(ExitCode::bad_content, message); }

/// The row with the deck's system message where it has none.
Conversation with_system(const Conversation& row, const std::string& system) {
  if (system.empty() || !row.messages.is_array() || row.messages.empty()) return row;
  const ordered_json& first = row.messages.front();
  if (first.is_object() && first.contains("role") && (first["role"] == "system" || first["role"] == "developer"))
    return row;
  Conversation full;
  full.messages.push_back({{"role", "system"}, {"content", system}});
  for (const ordered_json& message : row.messages) full.messages.push_back(message);
  full.tools = row.tools;
  full.prompt_messages = row.prompt_messages < 0 ? -1 : row.prompt_messages + 1;
  return full;
}

/// The row with one text in place of the parts of a content.
Conversation with_joined_parts(Conversation row) {
  for (ordered_json& message : row.messages) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_array()) continue;
    std::string text;
    for (const ordered_json& part : message["content"]) {
      if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) return row;
      text += part["text"].get_ref<const std::string&>();
    }
    message["content"] = std::move(text);
  }
  return row;
}

/// Returns true if the template writes the texts of parts. One that does not refuses them, or writes the list.
bool find_reads_parts(const ChatTemplate& chat, const ChatVariables& variables) {
  Conversation row;
  for (const char* role : {"user", "assistant"}) {
    const ordered_json part = {{"type", "text"}, {"text", std::string("the part of ") + role}};
    row.messages.push_back({{"role", role}, {"content", ordered_json::array({part})}});
  }
  try {
    const std::string text = chat.render(row, variables, {false, 0}).text;
    return text.find("the part of user") != std::string::npos &&
           text.find("the part of assistant") != std::string::npos && text.find("type'") == std::string::npos &&
           text.find("type\"") == std::string::npos;
  } catch (const UserError&) {
    return false;
  }
}

/// Returns the flag of a message that says whether it is trained.
std::optional<bool> flag_of(const ordered_json& message) {
  const auto found = message.find(turn_flag);
  return found == message.end() || !found->is_boolean() ? std::nullopt : std::optional(found->get<bool>());
}

/// Returns the messages whose turns are trained: the assistant's and those with a flag, without those whose flag says
/// no; or the last turn of the assistant.
std::vector<size_t> trained_messages(const Conversation& row, bool only_last) {
  std::vector<size_t> chosen;
  for (size_t i = row.messages.size(); i-- > 0;) {
    const bool answers = is_assistant(row.messages[i]);
    const bool is_trained = flag_of(row.messages[i]).value_or(answers);
    if (is_trained && (answers || !only_last)) chosen.insert(chosen.begin(), i);
    if (answers && only_last) break;
  }
  return chosen;
}

/// Returns the bytes of turns, in order and apart. `name` is the template's.
std::vector<TextRange> find_turns(const std::string& name, const std::vector<size_t>& messages, TurnFinder& turns) {
  std::vector<TextRange> all = turns.find(messages);
  std::ranges::sort(all, {}, &TextRange::begin);
  const auto meet = [](const TextRange& a, const TextRange& b) { return a.end > b.begin; };
  if (std::ranges::adjacent_find(all, meet) != all.end()) {
    fail_row(name + ": the turns of the assistant cannot be distinguished in the rendered text");
  }
  return all;
}

/// Leaves the turns whose flag says that they are not trained out of the trained bytes.
void leave_out_turns(const Conversation& row, size_t first, TurnFinder& turns, std::vector<TextRange>& trained) {
  for (size_t i = first; i < row.messages.size(); ++i) {
    if (flag_of(row.messages[i]).value_or(true)) continue;
    for (TextRange turn : turns.find(i)) {
      const bool is_last = i + 1 == row.messages.size() && !trained.empty();
      if (is_last) turn.end = std::max(turn.end, trained.back().end);  // with what the template writes after it
      std::vector<TextRange> rest;
      for (const TextRange& range : trained) {
        rest.push_back({range.begin, std::clamp(turn.begin, range.begin, range.end)});
        rest.push_back({std::clamp(turn.end, range.begin, range.end), range.end});
      }
      std::erase_if(rest, [](const TextRange& range) { return range.begin >= range.end; });
      trained = std::move(rest);
    }
  }
}

bool is_space(std::string_view text) { return text.find_first_not_of(" \n\r\t") == std::string_view::npos; }

}  // namespace

std::vector<ChatTemplateFile> find_chat_templates(const std::string& name, const std::string& folder) {
  if (name == "none") return {};
  if (name == "auto") return folder.empty() ? std::vector<ChatTemplateFile>() : read_chat_templates(folder);
  if (const NamedTemplate* named = find_named_template(name)) {
    return {{"default", std::string(named->source), "template " + name}};
  }
  if (name.find_first_of("/.") != std::string::npos) {
    std::error_code ignored;
    if (!std::filesystem::exists(name, ignored)) {
      throw UserError(ExitCode::missing_input, fmt::format("chat.template: {}: there is no such file", name));
    }
    const FileHandle file = FileHandle::open_to_read(name);
    return {{"default", file.read_text(static_cast<int64_t>(jinja::max_template_bytes)), name}};
  }
  throw UserError(ExitCode::deck, "chat.template: " + unknown_template(name));
}

ChatFiles read_chat_files(const std::string& name, const std::string& model_folder,
                          const std::string& tokenizer_folder) {
  ChatFiles files{find_chat_templates(name, model_folder), {}};
  if (files.templates.empty() && name == "auto") files.templates = find_chat_templates(name, tokenizer_folder);
  for (const std::string& folder : {tokenizer_folder, model_folder}) {
    if (folder.empty()) continue;
    for (auto& variable : read_special_tokens(folder)) {
      const auto same = std::ranges::find(files.variables, variable.first, &ChatVariables::value_type::first);
      if (same == files.variables.end()) files.variables.push_back(std::move(variable));
    }
  }
  return files;
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const ChatConfig& config, const ChatFiles& files, int64_t now)
    : tokenizer_(tokenizer), config_(config), now_(now), variables_(files.variables) {
  for (const ChatTemplateFile& file : files.templates) {
    templates_.push_back({file.name, file.source, ChatTemplate(file.source, file.path), false});
  }
  const std::pair<const char*, int32_t> known[] = {{"bos_token", tokenizer.bos_id()},
                                                   {"eos_token", tokenizer.eos_id()}};
  for (const auto& [name, id] : known) {
    if (id < 0) continue;
    const std::string text = tokenizer.token(id);
    const auto same = std::ranges::find(variables_, name, &ChatVariables::value_type::first);
    if (same == variables_.end()) {
      variables_.emplace_back(name, text);
    } else if (std::string_view(name) == "eos_token") {
      same->second = text;  // the deck may name another EOS
    }
  }
  std::erase_if(variables_, [](const auto& variable) { return variable.second.is_null(); });
  for (auto& variable : config.template_variables()) variables_.push_back(std::move(variable));
  for (Named& named : templates_) named.reads_parts = find_reads_parts(named.chat, variables_);
}

std::string ChatEncoder::template_name() const { return templates_.empty() ? "none" : templates_.front().chat.name(); }

std::string ChatEncoder::settings() const {
  constexpr int rules = 5;  // of masks; a change makes other tokens of the same rows
  ordered_json all = {{"rules", rules},
                      {"system", config_.system},
                      {"train_on", name_of(config_.train_on)},
                      {"parse_special", config_.parse_special},
                      {"plain_texts", "with special tokens"}};
  for (const Named& known : templates_) all["templates"].push_back({known.name, known.source});
  for (const auto& [name, value] : variables_) all["variables"].push_back({name, value});
  return json_text(all);
}

const ChatEncoder::Named& ChatEncoder::choose(const Conversation& row) const {
  if (templates_.empty()) {
    fail_row("the model has no chat template, which a conversation needs: set chat.template to a name or a Jinja file");
  }
  for (const char* name : {"tool_use", "default"}) {
    if (std::string_view(name) == "tool_use" && row.tools.is_null()) continue;
    const auto found = std::ranges::find(templates_, name, &Named::name);
    if (found != templates_.end()) return *found;
  }
  fail_row("the model has several chat templates and none is named default: set chat.template to a Jinja file");
}

ChatText ChatEncoder::render(const Conversation& given) const {
  const Named& known = choose(given);
  const ChatTemplate& chat = known.chat;
  Conversation row = with_system(given, config_.system);
  if (!known.reads_parts) row = with_joined_parts(std::move(row));
  RenderedChat rendered;
  try {
    rendered = chat.render(row, variables_, {false, now_});
  } catch (const UserError& error) {
    throw UserError(error.code(),
                    fmt::format("{}; correct the row, or set chat.template to another template", error.what()));
  }
  ChatText text{rendered.text, rendered.content, {}, 0, config_.parse_special};
  TrainOn train_on = config_.train_on;
  if (train_on == TrainOn::automatic) train_on = row.prompt_messages >= 0 ? TrainOn::completion : TrainOn::assistant;
  if (train_on != TrainOn::all && std::ranges::none_of(row.messages, is_assistant)) {
    fail_row("the conversation has no turn of the assistant");
  }
  if (train_on == TrainOn::completion && row.prompt_messages == std::ssize(row.messages)) {
    fail_row("the conversation has a prompt and no completion");
  }
  TurnFinder turns({tokenizer_, chat, variables_, now_}, row, rendered);
  const bool divided = train_on == TrainOn::completion && row.prompt_messages > 0;
  if (divided) text.border = turns.find_border(static_cast<size_t>(row.prompt_messages));
  if (divided || train_on == TrainOn::all) {
    text.trained.push_back({text.border, text.text.size()});
    leave_out_turns(row, divided ? static_cast<size_t>(row.prompt_messages) : 0, turns, text.trained);
    return text;
  }
  const bool has_flags = std::ranges::any_of(row.messages, [](const auto& m) { return m.contains(turn_flag); });
  const std::vector<size_t> chosen = trained_messages(row, train_on != TrainOn::assistant);
  if (chat.has_generation() && train_on == TrainOn::assistant && !has_flags) {
    text.trained = rendered.generated;
  } else {
    text.trained = find_turns(chat.name(), chosen, turns);
  }
  if (text.trained.empty() && !chosen.empty()) {
    fail_row(chat.name() + ": the template marks nothing of the conversation as generated");
  }
  return text;
}

void ChatEncoder::encode_text(EncodedRow& encoded) const {
  encoded.ids.clear();
  encoded.ranges.clear();
  const std::vector<TextRange> none;
  tokenizer_.encode_content(encoded.text.text, encoded.text.parses_special ? none : encoded.text.content, encoded.ids,
                            encoded.ranges);
  mark_trained(encoded);
}

void ChatEncoder::mark_trained(EncodedRow& encoded) {
  encoded.mask.assign(encoded.ids.size(), 0);
  const std::vector<TextRange>& trained = encoded.text.trained;
  size_t next = 0;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    const TextRange& range = encoded.ranges[i];
    while (next < trained.size() && range.begin >= trained[next].end) ++next;
    if (next == trained.size()) break;
    encoded.mask[i] = range.end > trained[next].begin ? 1 : 0;
  }
}

/// White space that a template writes after a stop token is not part of the turn.
void ChatEncoder::leave_out_space_after_stop(EncodedRow& encoded) const {
  for (size_t i = encoded.ids.size(); i-- > 0;) {
    const bool ends = encoded.mask[i] != 0 && (i + 1 == encoded.ids.size() || encoded.mask[i + 1] == 0);
    if (!ends) continue;
    size_t stop = i;
    while (stop > 0 && encoded.mask[stop] != 0 && !tokenizer_.is_special(encoded.ids[stop])) {
      const TextRange& range = encoded.ranges[stop];
      if (!is_space(std::string_view(encoded.text.text).substr(range.begin, range.end - range.begin))) break;
      --stop;
    }
    if (encoded.mask[stop] == 0 || !tokenizer_.is_special(encoded.ids[stop])) continue;
    for (size_t k = stop + 1; k <= i; ++k) encoded.mask[k] = 0;
  }
}

/// Training begins, if a token spans the border, at the first token in which the prompt alone differs.
void ChatEncoder::check_border(EncodedRow& encoded) const {
  const size_t border = encoded.text.border;
  const auto first = std::ranges::find(encoded.mask, uint8_t{1});
  if (first == encoded.mask.end() || border == 0 || encoded.text.trained.front().begin != border) return;
  const auto index = static_cast<size_t>(first - encoded.mask.begin());
  const bool is_clean = encoded.ranges[index].begin == border && index > 0 && encoded.ranges[index - 1].end == border;
  // A run of white space before the border may be split otherwise at the end of a text.
  const bool has_run = border >= 2 && is_space(std::string_view(encoded.text.text).substr(border - 2, 2));
  if (is_clean && !has_run) return;
  std::vector<int32_t> alone;
  std::vector<TextRange> ranges;
  size_t offset = 0;  // tokens before the text
  while (offset < index && encoded.ranges[offset].begin == encoded.ranges[offset].end) ++offset;
  std::vector<TextRange> content;
  for (const TextRange& range : encoded.text.content) {
    if (range.begin < border) content.push_back({range.begin, std::min(range.end, border)});
  }
  if (encoded.text.parses_special) content.clear();
  tokenizer_.encode_content(std::string_view(encoded.text.text).substr(0, border), content, alone, ranges);
  size_t same = 0;
  while (same < alone.size() && offset + same < index && alone[same] == encoded.ids[offset + same]) ++same;
  encoded.merged_border = same < alone.size();
  for (size_t i = offset + same; i < index; ++i) encoded.mask[i] = 1;
}

void ChatEncoder::encode(const InstructionRow& row, EncodedRow& encoded) const {
  encoded.merged_border = false;
  if (const auto* conversation = std::get_if<Conversation>(&row)) {
    encoded.text = render(*conversation);
    encode_text(encoded);
    check_border(encoded);
    const bool by_turns = encoded.text.border == 0 && config_.train_on != TrainOn::all;
    if (by_turns && !choose(*conversation).chat.has_generation()) leave_out_space_after_stop(encoded);
  } else {
    encode_plain(row, encoded);
  }
  encoded.trained = std::ranges::count(encoded.mask, uint8_t{1});
  encoded.stop = find_stop(encoded);
}

void ChatEncoder::encode_prompt(const InstructionRow& row, EncodedRow& encoded) const {
  encoded.merged_border = false;
  encoded.stop = -1;
  encoded.trained = 0;
  if (const auto* given = std::get_if<Conversation>(&row)) {
    const Named& known = choose(*given);
    Conversation prompt = with_system(*given, config_.system);
    if (!known.reads_parts) prompt = with_joined_parts(std::move(prompt));
    RenderedChat rendered = known.chat.render(prompt, variables_, {true, now_});
    encoded.text = {std::move(rendered.text), std::move(rendered.content), {}, 0, config_.parse_special};
    encode_text(encoded);
    return;
  }
  const auto* pair = std::get_if<PromptCompletion>(&row);
  encode_alone(pair != nullptr ? pair->prompt : std::get<PlainText>(row).text, encoded);
}

std::vector<int32_t> ChatEncoder::encode_prompt(const std::string& text) const {
  EncodedRow encoded;
  if (templates_.empty()) {
    encode_prompt(PromptCompletion{text, ""}, encoded);
  } else {
    Conversation row;
    row.messages = {{{"role", "user"}, {"content", text}}};
    encode_prompt(row, encoded);
  }
  return encoded.ids;
}

/// Returns the first of the special tokens that the template writes after the content of the last trained turn.
int32_t ChatEncoder::find_stop(const EncodedRow& encoded) const {
  int32_t stop = -1;
  size_t i = encoded.ids.size();
  while (i > 0 && encoded.mask[i - 1] == 0) --i;
  const std::vector<TextRange>& content = encoded.text.content;
  size_t after = content.size();  // of the ranges, the first that begins after the token
  while (i-- > 0 && encoded.mask[i] != 0) {
    const TextRange& range = encoded.ranges[i];
    while (after > 0 && content[after - 1].begin >= range.end) --after;
    if (after > 0 && content[after - 1].end > range.begin) break;
    if (tokenizer_.is_special(encoded.ids[i])) stop = encoded.ids[i];
  }
  return stop;
}

int32_t ChatEncoder::stop_id() const {
  ChatEncoder encoder = *this;
  encoder.config_.train_on = TrainOn::last;
  Conversation row;
  row.messages = {{{"role", "user"}, {"content", "Hello"}}, {{"role", "assistant"}, {"content", "Hi"}}};
  EncodedRow encoded;
  try {
    encoder.encode(row, encoded);
  } catch (const UserError&) {
    return -1;
  }
  return encoded.stop;
}

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

// Rows of plain texts, which people formatted themselves: no template renders them, and their special tokens are
// tokens, as in TRL.

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
