#include "data/formats/message_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

/// Checks the parts of a content that is a list: {"type": "text", "text": "..."}.
void check_parts(const OrderedJsonNode& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJsonNode part = parts.at(i);
    if (part.object().text_or("type", "text") != "text")
      part.at("type").refuse_value("text: only texts are trained on");
    part.at("text").text();
  }
}

Json read_content(const OrderedJsonNode& content, bool calls_tools) {
  if (content.value().is_array()) {
    check_parts(content);
    return content.value();
  }
  if (content.is_null() && calls_tools) return nullptr;
  return content.text();
}

/// Keys that say of a turn whether it is trained: those of OpenAI and mistral-finetune, axolotl, and LLaMA-Factory.
constexpr std::array<std::string_view, 3> turn_flags = {"weight", "train", "loss_weight"};

bool read_flag(const OrderedJsonNode& flag) {
  const Json& value = flag.value();
  if (value.is_boolean()) return value.get<bool>();
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number != 0 && number != 1) {
    flag.refuse(fmt::format(
        "is {}, and must be 0 or 1, or false or true: a turn is trained or it is not, with no weight between; correct "
        "it, or remove it from the turn",
        printable_value(value)));
  }
  return number == 1;
}

/// Returns what the flags of a message say, nothing if it has none.
std::optional<bool> read_flags(const OrderedJsonNode& message) {
  std::optional<bool> trained;
  for (const std::string_view name : turn_flags) {
    if (!message.has(name)) continue;
    const bool flag = read_flag(message.at(name));
    if (trained && *trained != flag) message.at(name).refuse("contradicts another flag of the turn: keep one of them");
    trained = flag;
  }
  return trained;
}

}  // namespace

bool is_sharegpt_role(std::string_view role) {
  constexpr std::array<std::string_view, 4> names = {"human", "gpt", "function_call", "observation"};
  return std::ranges::find(names, role) != names.end();
}

Json read_message(const RowView& row, const OrderedJsonNode& message) {
  message.object();
  const std::string role = row.key_in(message, message_role.name), content = row.key_in(message, message_content.name);
  if (message.at(role).text().empty()) message.at(role).refuse("is empty");
  const bool calls_tools = message.has("tool_calls");
  if (!message.value().contains(content) && !calls_tools) message.at(content);
  Json result = Json::object();
  for (const auto& [key, value] : message.value().items()) {
    if (key == role) {
      result["role"] = value;
    } else if (key == content) {
      result["content"] = read_content(message.at(key), calls_tools);
    } else if (key != "role" && key != "content" && !value.is_null() &&  // a mapped column takes their place
               std::ranges::find(turn_flags, key) == turn_flags.end()) {
      result[key] = value;
    }
  }
  if (const std::optional<bool> trained = read_flags(message)) result[turn_flag] = *trained;
  if (!result.contains("content")) result["content"] = nullptr;
  return result;
}

Json read_messages(const RowView& row, std::string_view role) {
  const OrderedJsonNode list = row.at(role);
  if (list.array().size() == 0) list.refuse("it has no message");
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) messages.push_back(read_message(row, list.at(i)));
  return messages;
}

Json read_tools(const RowView& row) {
  if (!row.has("tools")) return nullptr;
  const OrderedJsonNode column = row.at("tools");
  Json tools = column.value();
  if (tools.is_string()) {
    const auto& text = tools.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
    try {
      tools = parse_ordered_json(std::string(text), {}, 1000);
    } catch (const JsonError& error) {
      column.refuse(fmt::format("the text is not JSON: byte {}: {}", error.byte(), error.reason()));
    }
  }
  if (tools.is_object()) tools = Json::array({tools});
  const OrderedJsonNode list(tools, column.where());
  for (size_t i = 0; i < list.array().size(); ++i) list.at(i).object();
  return tools.empty() ? Json(nullptr) : tools;
}

void add_system(const RowView& row, Json& messages) {
  const std::string system = row.text_or_empty("system");
  if (system.empty() || (!messages.empty() && messages.front()["role"] == "system")) return;
  messages.insert(messages.begin(), make_message("system", system));
}

Json make_message(std::string_view role, std::string content) {
  Json message = Json::object();
  message["role"] = role;
  message["content"] = std::move(content);
  return message;
}

void require_assistant(const RowView& row, const Json& messages, size_t first) {
  std::vector<std::string> found;
  bool sharegpt = false;
  for (size_t i = first; i < messages.size(); ++i) {
    const auto& role = messages[i]["role"].get_ref<const std::string&>();
    if (role == "assistant") return;
    sharegpt = sharegpt || is_sharegpt_role(role);
    if (std::ranges::find(found, printable(role)) == found.end() && found.size() < 8) found.push_back(printable(role));
  }
  row.refuse(fmt::format("there is no turn of the assistant to train on, only turns of {}{}", joined(found),
                         sharegpt ? "; data.format = sharegpt reads these roles"
                                  : "; remove the row, or give the answers the role assistant"));
}

}  // namespace llmtrain
