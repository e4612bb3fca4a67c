// Rows of two answers of which one is preferred, as TRL has them: {"prompt": "...", "chosen": "...", "rejected":
// "..."}, texts or lists of messages, optionally with "margin", by how much. Without a prompt it is what both begin
// with. As LLaMA-Factory and Orca have them, the prompt is an instruction with its input, a question, or the list
// "conversations", and an answer can be a single message.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "data/formats/message_list.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the bytes of the prompt that two texts begin with, as TRL's extract_prompt: up to the first character that
/// differs, without one space before it; if there is none, all but the last character of the shorter text.
size_t shared_text(const std::string& chosen, const std::string& rejected) {
  const size_t shorter = std::min(chosen.size(), rejected.size());
  auto same = static_cast<size_t>(std::ranges::mismatch(chosen, rejected).in1 - chosen.begin());
  const bool differs = same < shorter;
  if (!differs && same > 0) --same;
  while (same > 0 && is_utf8_continuation(chosen[same])) --same;
  return differs && same > 0 && chosen[same - 1] == ' ' ? same - 1 : same;
}

/// The same for messages.
size_t shared_messages(const Json& chosen, const Json& rejected) {
  const size_t shorter = std::min(chosen.size(), rejected.size());
  for (size_t i = 0; i < shorter; ++i) {  // plain JSON compares objects whatever the order of their keys
    if (nlohmann::json(chosen[i]) != nlohmann::json(rejected[i])) return i;
  }
  return shorter - 1;
}

void add_texts(const RowView& row, const std::string& chosen, const std::string& rejected, RowDocuments& result) {
  const bool given = row.has("prompt");
  const size_t shared = given ? 0 : shared_text(chosen, rejected);
  const std::string prompt = given ? row.at("prompt").text() : chosen.substr(0, shared);
  for (const std::string* text : {&chosen, &rejected}) {
    result.documents.emplace_back(PromptCompletion{prompt, text->substr(shared)});
  }
}

/// The turns before both answers, in a column of their own.
Json read_turns_before(const RowView& row) {
  const bool alternates = has_alternating_turns(row, "messages");
  return alternates ? read_alternating_turns(row, "messages", false) : read_turns(row, "messages");
}

/// Returns the prompt where the answers are texts, but not the whole row; nothing where the row has one text or none.
std::optional<InstructionRow> find_question(const RowView& row) {
  if (has_question(row)) return read_question(row);
  if (row.has("prompt") || !row.has("messages")) return std::nullopt;
  Conversation conversation;
  conversation.messages = read_turns_before(row);
  add_system(row, conversation.messages);
  conversation.prompt_messages = static_cast<int64_t>(conversation.messages.size());
  conversation.tools = read_tools_of_turns(row);
  return conversation;
}

/// Returns the messages before the answers: a list, what both answers begin with (a text beside it repeats that), or
/// the question in other columns.
Json read_prompt_messages(const RowView& row, const Json& chosen, size_t shared) {
  if (row.has("prompt") && !row.peek("prompt").is_string()) return read_turns(row, "prompt");
  if (shared > 0) return Json(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(shared));
  if (row.has("messages")) return read_turns_before(row);
  if (row.has("prompt") || row.has("query")) return read_question_messages(row);
  row.refuse(
      fmt::format("{} and {} begin with different messages, so that there is no prompt: give the column prompt "
                  "a list of messages",
                  row.at("chosen").where(), row.at("rejected").where()));
}

void add_conversations(const RowView& row, RowDocuments& result) {
  const Json chosen = read_turns(row, "chosen"), rejected = read_turns(row, "rejected");
  const bool given = row.has("prompt") && !row.peek("prompt").is_string();
  const size_t shared = given ? 0 : shared_messages(chosen, rejected);
  Json prompt = read_prompt_messages(row, chosen, shared);
  add_system(row, prompt);
  const Json tools = read_tools_of_turns(row);
  for (const Json* messages : {&chosen, &rejected}) {
    Conversation conversation{prompt, tools, static_cast<int64_t>(prompt.size())};
    for (size_t i = shared; i < messages->size(); ++i) conversation.messages.push_back((*messages)[i]);
    require_assistant(row, conversation.messages, prompt.size());
    result.documents.emplace_back(std::move(conversation));
  }
}

RowDocuments read_pair(const RowView& row) {
  RowDocuments result;
  const OrderedJsonNode chosen = row.at("chosen"), rejected = row.at("rejected");
  if (chosen.value().is_string() && rejected.value().is_string()) {
    if (const auto question = find_question(row)) {
      for (const OrderedJsonNode* answer : {&chosen, &rejected}) {
        result.documents.push_back(with_answer(*question, answer->text()));
      }
    } else {
      add_texts(row, chosen.text(), rejected.text(), result);
    }
  } else if (chosen.value().is_structured() && rejected.value().is_structured()) {
    add_conversations(row, result);
  } else {
    row.refuse(fmt::format("{} and {} must be two texts or two lists of messages, not {} and {}", chosen.where(),
                           rejected.where(), printable_value(chosen.value()), printable_value(rejected.value())));
  }
  if (row.has("margin")) result.value = static_cast<float>(row.at("margin").number());
  if (!std::isfinite(result.value)) row.at("margin").refuse("is too large");
  return result;
}

}  // namespace

const RowFormat& row_format_preference() {
  static constexpr std::array roles = {RowRole{"chosen", {"chosen"}, RowRole::Place::required},
                                       RowRole{"rejected", {"rejected"}, RowRole::Place::required},
                                       question_role,
                                       input_role,
                                       history_role,
                                       RowRole{"messages", {"conversations", "messages"}},
                                       RowRole{"margin", {"margin"}},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       message_role,
                                       message_content};
  static const RowFormat format = {"preference", roles, nullptr, nullptr, read_pair, 2, "margin"};
  return format;
}

}  // namespace llmtrain
