#include "text/chat/chat_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"
#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/lexer.hpp"
#include "text/chat/jinja/template.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t max_stored_chat_bytes = int64_t{1} << 30;
constexpr const char* reasoning_fields[] = {"reasoning_content", "thinking", "reasoning"};

constexpr std::string_view row_variables[] = {"messages", "tools", "documents", "add_generation_prompt"};

bool is_standard_token(std::string_view name) {
  static constexpr std::string_view names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
  return std::ranges::find(names, name) != std::end(names);
}

/// Converts JSON into values of a template; texts get the marks.
class ValueReader {
 public:
  ValueReader(const std::string& name, jinja::Marks marks) : name_(name), marks_(marks) {}

  jinja::Value read(const ordered_json& json, uint32_t depth = 0) const {
    if (depth >= jinja::max_value_depth / 2) fail("the conversation nests lists and objects too deeply");
    if (json.is_string()) return read_text(json.get_ref<const std::string&>());
    if (json.is_boolean()) return json.get<bool>();
    if (is_big_integer(json) || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX))
      return jinja::BigInteger{json_text(json)};
    if (json.is_number_integer()) return json.get<int64_t>();
    if (json.is_number_float()) return json.get<double>();
    if (json.is_array()) {
      auto list = std::make_shared<jinja::Sequence>();
      for (const ordered_json& item : json) {
        list->items.push_back(read(item, depth + 1));
        list->depth = std::max(list->depth, list->items.back().depth() + 1);
      }
      return std::shared_ptr<const jinja::Sequence>(std::move(list));
    }
    if (json.is_object()) {
      auto dict = std::make_shared<jinja::Dict>();
      for (const auto& [key, value] : json.items()) {
        dict->entries.emplace_back(read_text(key), read(value, depth + 1));
        dict->depth = std::max(dict->depth, dict->entries.back().second.depth() + 1);
      }
      return std::shared_ptr<const jinja::Dict>(std::move(dict));
    }
    return jinja::None{};
  }

 private:
  [[noreturn]] void fail(std::string_view message) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", name_, message));
  }
  jinja::Value read_text(const std::string& text) const {
    if (find_invalid_utf8(text) != std::string_view::npos) fail("a text of the conversation is not UTF-8");
    return jinja::MarkedText(text, marks_);
  }

  const std::string& name_;
  jinja::Marks marks_;
};

/// Returns messages as apply_chat_template passes them on: without keys that are null, and with reasoning under the
/// names that templates read.
ordered_json normalized_messages(const ordered_json& messages, const std::string& name) {
  if (!messages.is_array() || messages.empty()) {
    throw UserError(ExitCode::bad_content, name + ": the conversation has no messages");
  }
  ordered_json normalized = ordered_json::array();
  for (const ordered_json& message : messages) {
    if (!message.is_object()) throw UserError(ExitCode::bad_content, name + ": a message is not a JSON object");
    const ordered_json* reasoning = nullptr;
    for (const char* field : reasoning_fields) {
      const auto found = message.find(field);
      if (reasoning == nullptr && found != message.end() && !found->is_null()) reasoning = &*found;
    }
    ordered_json copy = ordered_json::object();
    if (reasoning != nullptr) copy["thinking"] = *reasoning;
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null() && key != turn_flag) copy[key] = value;
    }
    if (reasoning != nullptr) copy["reasoning_content"] = *reasoning;
    normalized.push_back(std::move(copy));
  }
  return normalized;
}

/// Returns where the text has the mark; neighbours that differ in the mark `separating` are not joined.
std::vector<TextRange> ranges_of(const jinja::MarkedText& text, jinja::Marks mark, jinja::Marks separating = 0) {
  std::vector<TextRange> ranges;
  jinja::Marks last = 0;
  for (const jinja::MarkedSpan& span : text.spans()) {
    if ((span.marks & mark) == 0) continue;
    if (!ranges.empty() && ranges.back().end == span.begin && ((span.marks ^ last) & separating) == 0) {
      ranges.back().end = span.end;
    } else {
      ranges.push_back({span.begin, span.end});
    }
    last = span.marks;
  }
  return ranges;
}

/// Converts messages into values whose texts know their message.
jinja::Value read_numbered(const ordered_json& messages, const std::string& name) {
  auto list = std::make_shared<jinja::Sequence>();
  for (const ordered_json& message : messages) {
    const auto number = static_cast<jinja::Marks>(list->items.size() + 1) << jinja::mark::first_number;
    const ValueReader role(name, jinja::mark::data | number);
    const ValueReader rest(name, jinja::mark::data | jinja::mark::said | number);
    auto dict = std::make_shared<jinja::Dict>();
    for (const auto& [key, value] : message.items()) {
      dict->entries.emplace_back(role.read(key), (key == "role" ? role : rest).read(value, 2));
      dict->depth = std::max(dict->depth, dict->entries.back().second.depth() + 1);
    }
    list->depth = std::max(list->depth, dict->depth + 1);
    list->items.emplace_back(std::shared_ptr<const jinja::Dict>(std::move(dict)));
  }
  return std::shared_ptr<const jinja::Sequence>(std::move(list));
}

std::vector<MessageRange> message_ranges_of(const jinja::MarkedText& text) {
  std::vector<MessageRange> ranges;
  for (const jinja::MarkedSpan& span : text.spans()) {
    const jinja::Marks number = span.marks >> jinja::mark::first_number;
    if (number > 0) ranges.push_back({{span.begin, span.end}, number - 1, (span.marks & jinja::mark::said) == 0});
  }
  return ranges;
}

std::string with_slash(const std::string& folder) {
  return folder.empty() || folder.ends_with('/') ? folder : folder + "/";
}

std::string read_template_file(const fs::path& path) {
  return FileHandle::open_to_read(path.string()).read_text(static_cast<int64_t>(jinja::max_template_bytes));
}

nlohmann::json read_config(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return nlohmann::json::object();
  nlohmann::json config = read_json(FileHandle::open_to_read(path));
  return config.is_object() ? config : nlohmann::json::object();
}

/// Returns what a checkpoint stores; nothing if `base` is none, or has no conversations.
std::optional<ChatFiles> read_stored_chat(const std::string& base) {
  const std::string path = base + stored_chat_name;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  return parse_chat_files(FileHandle::open_to_read(path).read_text(max_stored_chat_bytes), path);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name)
    : template_(std::make_shared<const jinja::Template>(jinja::parse_template(source, name))) {}

bool ChatTemplate::has_generation() const { return template_->has_generation; }
const std::string& ChatTemplate::name() const { return template_->name; }

RenderedChat ChatTemplate::render(const Conversation& conversation, const ChatVariables& variables,
                                  const ChatRenderOptions& options) const {
  const ValueReader content(name(), jinja::mark::data), plain(name(), 0);
  std::vector<std::pair<std::string, jinja::Value>> values = {
      {"messages", read_numbered(normalized_messages(conversation.messages, name()), name())},
      {"tools", content.read(conversation.tools)},
      {"documents", jinja::None{}},
      {"add_generation_prompt", options.add_generation_prompt}};
  for (const auto& [key, value] : variables) values.emplace_back(key, plain.read(value));
  jinja::Evaluator evaluator(*template_, {});
  evaluator.now = options.now;
  const jinja::MarkedText text = evaluator.render(values);
  return {text.bytes(), ranges_of(text, jinja::mark::data),
          ranges_of(text, jinja::mark::generated, jinja::mark::odd_block), message_ranges_of(text)};
}

std::string serialize(const ChatFiles& files) {
  ordered_json json = {{"templates", ordered_json::array()}, {"variables", ordered_json::array()}};
  for (const ChatTemplateFile& file : files.templates) {
    json["templates"].push_back({{"name", file.name}, {"source", file.source}, {"path", file.path}});
  }
  for (const auto& [name, value] : files.variables) json["variables"].push_back({{"name", name}, {"value", value}});
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ChatFiles parse_chat_files(std::string_view text, const std::string& place) {
  ChatFiles files;
  try {
    const ordered_json json = ordered_json::parse(text);
    for (const ordered_json& file : json.at("templates")) {
      files.templates.push_back({file.at("name"), file.at("source"), file.at("path")});
    }
    for (const ordered_json& entry : json.at("variables")) {
      files.variables.emplace_back(entry.at("name").get<std::string>(), entry.at("value"));
    }
  } catch (const nlohmann::json::exception&) {
    throw UserError(ExitCode::bad_content, place + ": it does not hold the chat templates of a run");
  }
  return files;
}

std::vector<ChatTemplateFile> read_chat_templates(const std::string& folder) {
  std::vector<ChatTemplateFile> templates;
  std::error_code ignored;
  const std::string base = with_slash(folder), main_file = base + chat_template_file;
  if (const auto stored = read_stored_chat(base)) return stored->templates;
  if (fs::is_regular_file(main_file, ignored))
    templates.push_back({default_template, read_template_file(main_file), main_file});
  const std::string more = base + chat_template_folder;
  if (fs::is_directory(more, ignored)) {
    for (const auto& entry : fs::directory_iterator(more, ignored)) {
      if (entry.path().extension() != ".jinja") continue;
      templates.push_back({entry.path().stem().string(), read_template_file(entry.path()), entry.path().string()});
    }
    std::ranges::sort(templates, [](const auto& a, const auto& b) { return a.name < b.name; });
  }
  if (!templates.empty()) return templates;
  const std::string path = base + "tokenizer_config.json";
  const nlohmann::json config = read_config(path);
  const nlohmann::json found = config.value("chat_template", nlohmann::json());
  if (found.is_string()) {
    templates.push_back({default_template, found.get<std::string>(), path + " (chat_template)"});
  } else if (found.is_object()) {
    for (const auto& [name, source] : found.items()) {
      if (source.is_string())
        templates.push_back({name, source.get<std::string>(), path + " (chat_template " + name + ")"});
    }
  } else if (found.is_array()) {
    for (const nlohmann::json& entry : found) {
      const bool is_named = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                            entry.contains("template") && entry["template"].is_string();
      if (!is_named)
        throw UserError(ExitCode::bad_content,
                        path + ": chat_template is a list whose entries need \"name\" and \"template\"");
      const std::string name = entry["name"];
      templates.push_back({name, entry["template"].get<std::string>(), path + " (chat_template " + name + ")"});
    }
  } else if (!found.is_null()) {
    throw UserError(ExitCode::bad_content, path + ": chat_template must be a text or a list");
  }
  return templates;
}

ChatVariables read_special_tokens(const std::string& folder) {
  if (auto stored = read_stored_chat(with_slash(folder))) return std::move(stored->variables);
  ChatVariables variables;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = with_slash(folder) + file;
    const nlohmann::json config = read_config(path);
    const auto add = [&](const std::string& name, const nlohmann::json& value) {
      const bool is_known = std::ranges::find(variables, name, &ChatVariables::value_type::first) != variables.end();
      const nlohmann::json content = value.is_object() ? value.value("content", nlohmann::json()) : value;
      if (is_known || !(content.is_string() || (content.is_null() && is_standard_token(name)))) return;
      if (std::ranges::find(row_variables, name) != std::end(row_variables)) {
        throw UserError(
            ExitCode::bad_content,
            fmt::format("{}: a special token cannot have the name {}, a variable of every row", path, name));
      }
      variables.emplace_back(name, content.is_null() ? ordered_json() : ordered_json(content.get<std::string>()));
    };
    const auto add_named = [&](const char* key) {
      const auto found = config.find(key);
      if (found == config.end() || !found->is_object()) return;
      for (const auto& [name, value] : found->items()) add(name, value);
    };
    add_named("extra_special_tokens");
    for (const auto& [name, value] : config.items()) {
      if (name.ends_with("_token")) add(name, value);
    }
    add_named("model_specific_special_tokens");
  }
  return variables;
}

}  // namespace llmtrain
