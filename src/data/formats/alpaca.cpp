// Rows of instructions as Alpaca and LLaMA-Factory have them: {"instruction": "...", "input": "...", "output": "..."},
// optionally with "system", "tools" and the turns before: "history": [["question", "answer"], ...]. The user's turn is
// the instruction and, on a new line, the input.

#include <fmt/format.h>

#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

/// Returns the user's turn: what there is of instruction and input.
std::string read_question(const RowView& row) {
  std::string question = row.at("prompt").text();
  const std::string input = row.text_or_empty("query");
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

/// Without a template the prompt is the system text, the history and the question, one line each.
InstructionRow read_alpaca(const RowView& row) {
  std::string question = read_question(row), answer = row.at("response").text();
  if (!row.templated()) {
    PromptCompletion texts;
    const auto add = [&](const std::string& text) { texts.prompt += text + "\n"; };
    if (const std::string system = row.text_or_empty("system"); !system.empty()) add(system);
    each_pair_of_history(row, [&](const std::string& before, const std::string& reply) {
      add(before);
      add(reply);
    });
    add(question);
    texts.completion = std::move(answer);
    return texts;
  }
  Conversation conversation;
  each_pair_of_history(row, [&](const std::string& before, const std::string& reply) {
    conversation.messages.push_back(make_message("user", before));
    conversation.messages.push_back(make_message("assistant", reply));
  });
  conversation.messages.push_back(make_message("user", std::move(question)));
  add_system(row, conversation.messages);
  conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size());
  conversation.messages.push_back(make_message("assistant", std::move(answer)));
  conversation.tools = read_tools(row);
  return conversation;
}

}  // namespace

const RowFormat& row_format_alpaca() {
  static constexpr std::array roles = {RowRole{"prompt", {"instruction"}, RowRole::Place::required},
                                       RowRole{"query", {"input"}},
                                       RowRole{"response", {"output"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"history", {"history"}},
                                       RowRole{"tools", {"tools"}},
                                       difficulty_role};
  static const RowFormat format = {"alpaca", roles, nullptr, read_alpaca};
  return format;
}

}  // namespace llmtrain
