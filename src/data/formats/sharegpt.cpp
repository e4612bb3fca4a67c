// Rows of conversations as LLaMA-Factory's sharegpt format has them: {"conversations": [{"from": "human", "value":
// "..."}, {"from": "gpt", "value": "..."}, ...]}, optionally with "system" and "tools". Turns of human or observation
// and of gpt or function_call alternate; a system message may come first.

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

enum class Turn : uint8_t { system, asks, answers };

/// A role of a message, and that of Transformers.
struct SharegptRole {
  std::string_view name, role;
  Turn turn;
};
constexpr std::array<SharegptRole, 9> sharegpt_roles = {{{"human", "user", Turn::asks},
                                                         {"user", "user", Turn::asks},
                                                         {"gpt", "assistant", Turn::answers},
                                                         {"assistant", "assistant", Turn::answers},
                                                         {"system", "system", Turn::system},
                                                         {"function_call", "assistant", Turn::answers},
                                                         {"observation", "tool", Turn::asks},
                                                         {"tool", "tool", Turn::asks},
                                                         {"chatgpt", "assistant", Turn::answers}}};

/// Null for a role that sharegpt does not have.
const SharegptRole* find_role(const std::string& name) {
  const auto found = std::ranges::find(sharegpt_roles, name, &SharegptRole::name);
  return found != sharegpt_roles.end() ? &*found : nullptr;
}

[[noreturn]] void leave_out(const OrderedJsonNode& name, const std::string& expected) {
  throw LeftOutRow(fmt::format("{}: must be {}, not {}", name.where(), expected, printable_value(name.value())));
}

const SharegptRole& role_of(const OrderedJsonNode& name) {
  if (const SharegptRole* known = find_role(name.text())) return *known;
  std::vector<std::string_view> known;
  known.reserve(sharegpt_roles.size());
  for (const SharegptRole& role : sharegpt_roles) known.push_back(role.name);
  leave_out(name, joined(known) + did_you_mean(name.text(), known));
}

/// The calls in a message of function_call: {"name": ..., "arguments": {...}}, or a list of them.
Json read_calls(const OrderedJsonNode& value) {
  Json calls;
  try {
    calls = parse_ordered_json(value.text(), {}, 1000);
  } catch (const JsonError& error) {
    value.refuse(fmt::format("a function call must be JSON: byte {}: {}", error.byte(), error.reason()));
  }
  if (calls.is_object()) calls = Json::array({calls});
  const OrderedJsonNode list(calls, value.where());
  Json result = Json::array();
  for (size_t i = 0; i < list.array().size(); ++i) {
    const OrderedJsonNode call = list.at(i);
    if (call.at("name").text().empty()) call.at("name").refuse("is empty");
    Json function = Json::object();
    function["name"] = call.at("name").value();
    function["arguments"] = call.at("arguments").value();
    Json entry = Json::object();
    entry["type"] = "function";
    entry["function"] = std::move(function);
    result.push_back(std::move(entry));
  }
  if (result.empty()) value.refuse("there is no function call");
  return result;
}

Json read_turn(const RowView& row, const OrderedJsonNode& message, const SharegptRole& role) {
  Json turn = read_message(row, message);
  turn["role"] = role.role;
  if (role.name != "function_call") return turn;
  turn["tool_calls"] = read_calls(message.at(row.key_in(message, "content")));
  turn["content"] = "";
  return turn;
}

/// Tools are the schemas of functions alone, which Transformers has inside {"type": "function", "function": ...}.
Json wrap_tools(Json tools) {
  if (!tools.is_array()) return tools;
  for (Json& tool : tools) {
    if (tool.contains("function") || tool.contains("type")) continue;
    Json wrapped = Json::object();
    wrapped["type"] = "function";
    wrapped["function"] = std::move(tool);
    tool = std::move(wrapped);
  }
  return tools;
}

}  // namespace

Json read_alternating_turns(const RowView& row, std::string_view column, bool answered) {
  const OrderedJsonNode list = row.at(column);
  if (list.array().size() == 0) list.refuse("it has no message");
  Json messages = Json::array();
  bool asks = true;  // the kind of turn that comes next
  for (size_t i = 0; i < list.size(); ++i) {
    const OrderedJsonNode message = list.at(i);
    const OrderedJsonNode name = message.object().at(row.key_in(message, "role"));
    const SharegptRole& role = role_of(name);
    if (role.turn == Turn::system && i > 0) throw LeftOutRow(name.where() + ": a system message must be the first one");
    if (role.turn != Turn::system) {
      if (asks != (role.turn == Turn::asks)) {
        leave_out(name, asks ? "human or observation: turns alternate, and human begins"
                             : "gpt or function_call: turns alternate");
      }
      asks = !asks;
    }
    messages.push_back(read_turn(row, message, role));
  }
  const bool turns = messages.size() > 1 || messages.front()["role"] != "system";
  if (turns && asks == answered) return messages;
  const OrderedJsonNode last = list.at(list.size() - 1);
  leave_out(last.at(row.key_in(last, "role")), answered ? "gpt or function_call: the last turn is the one to learn"
                                                        : "human or observation: the answers follow the last turn");
}

bool has_alternating_turns(const RowView& row, std::string_view column) {
  const Json& list = row.peek(column);
  return list.is_array() && std::ranges::any_of(list, [&](const Json& message) {
           if (!message.is_object()) return false;
           const std::string key = row.key_in(OrderedJsonNode(message, ""), "role");
           const bool named = message.contains(key) && message[key].is_string();
           return named && (key == "from" || is_sharegpt_role(message[key].get_ref<const std::string&>()));
         });
}

Json read_turns(const RowView& row, std::string_view column) {
  const OrderedJsonNode list = row.at(column);
  const bool single = list.value().is_object();
  if (!single && list.array().size() == 0) list.refuse("it has no message");
  Json messages = Json::array();
  for (size_t i = 0; i < (single ? 1 : list.size()); ++i) {
    const OrderedJsonNode message = single ? list : list.at(i);
    const std::string key = row.key_in(message, "role");
    const SharegptRole* role =
        message.has(key) && message.at(key).value().is_string() ? find_role(message.at(key).text()) : nullptr;
    messages.push_back(role != nullptr ? read_turn(row, message, *role) : read_message(row, message));
  }
  return messages;
}

Json read_tools_of_turns(const RowView& row) { return wrap_tools(read_tools(row)); }

namespace {

InstructionRow read_sharegpt(const RowView& row) {
  Conversation conversation;
  conversation.messages = read_alternating_turns(row, "messages", true);
  require_assistant(row, conversation.messages);
  add_system(row, conversation.messages);
  conversation.tools = read_tools_of_turns(row);
  return conversation;
}

}  // namespace

const RowFormat& row_format_sharegpt() {
  static constexpr std::array roles = {RowRole{"messages", {"conversations", "messages"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       RowRole{"role", {"from", "role"}, RowRole::Place::in_message},
                                       RowRole{"content", {"value", "content"}, RowRole::Place::in_message},
                                       difficulty_role};
  static const RowFormat format = {
      "sharegpt", roles, [](const RowView& row) { return row.at("messages").value().is_array(); }, read_sharegpt};
  return format;
}

}  // namespace llmtrain
