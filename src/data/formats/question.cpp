
#include <fmt/format.h>

#include <algorithm>

#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

/// A column of input belongs to an instruction; beside a column prompt it may repeat a part of it.
bool takes_input(const RowView& row) {
  return row.names("query") || row.names("prompt") || row.column("prompt") != "prompt" || !row.has("prompt");
}

bool is_filled(const RowView& row, std::string_view role) {
  return row.has(role) && row.peek(role).is_string() && !row.peek(role).get_ref<const std::string&>().empty();
}

/// Returns the user's turn: what there is of instruction and input.
std::string read_turn_of_user(const RowView& row) {
  std::string question = row.text_or_empty("prompt");
  const std::string input = takes_input(row) ? row.text_or_empty("query") : std::string();
  if (!question.empty() && !input.empty()) question += "\n";
  question += input;
  if (question.empty()) row.at("prompt").refuse("is empty, and there is no input");
  return question;
}

/// Calls take(question, answer) for the turns before.
template <class Take>
void each_pair_of_history(const RowView& row, const Take& take) {
  if (!row.has("history")) return;
  const OrderedJsonNode history = row.at("history");
  for (size_t i = 0; i < history.array().size(); ++i) {
    const OrderedJsonNode pair = history.at(i);
    if (pair.array().size() != 2) pair.refuse(fmt::format("must be [question, answer], not {} items", pair.size()));
    take(pair.at(size_t{0}).text(), pair.at(1).text());
  }
}

}  // namespace

bool has_question(const RowView& row) {
  if (row.has("prompt") && !row.peek("prompt").is_string()) return false;
  if (row.has("history") && row.peek("history").is_array() && !row.peek("history").empty()) return true;
  if (row.names("query")) return true;
  if (!row.has("prompt")) return is_filled(row, "query");
  const std::string column = row.column("prompt");
  constexpr std::array<std::string_view, 3> contents = {"instruction", "question", "query"};
  if (!row.names("prompt") && std::ranges::find(contents, column) != contents.end()) return true;
  const auto& prompt = row.peek("prompt").get_ref<const std::string&>();
  return is_filled(row, "system") && prompt.find(row.peek("system").get_ref<const std::string&>()) == std::string::npos;
}

Json read_question_messages(const RowView& row) {
  Json messages = Json::array();
  each_pair_of_history(row, [&](const std::string& before, const std::string& reply) {
    messages.push_back(make_message("user", before));
    messages.push_back(make_message("assistant", reply));
  });
  messages.push_back(make_message("user", read_turn_of_user(row)));
  add_system(row, messages);
  return messages;
}

InstructionRow read_question(const RowView& row) {
  if (row.templated()) {
    Conversation conversation;
    conversation.messages = read_question_messages(row);
    conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size());
    conversation.tools = read_tools(row);
    return conversation;
  }
  PromptCompletion texts;
  const auto add = [&](const std::string& text) { texts.prompt += text + "\n"; };
  if (const std::string system = row.text_or_empty("system"); !system.empty()) add(system);
  each_pair_of_history(row, [&](const std::string& before, const std::string& reply) {
    add(before);
    add(reply);
  });
  add(read_turn_of_user(row));
  return texts;
}

InstructionRow with_answer(InstructionRow question, const std::string& answer) {
  if (auto* texts = std::get_if<PromptCompletion>(&question)) {
    texts->completion = answer;
  } else {
    std::get<Conversation>(question).messages.push_back(make_message("assistant", answer));
  }
  return question;
}

}  // namespace llmtrain
