#include "text/chat/chat_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "text/chat/named_templates.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_variable_keys = 1000;  ///< of one object

}  // namespace

void ChatConfig::visit(DeckKeys& keys) {
  keys.section("chat", "Control how conversations become text, and which of their tokens are trained.", Change::breaks,
               instruction_tasks, true);
  keys.key(
      "template", template_name,
      {.doc =
           "Chat template: auto (that of the model's folder, or else of the tokenizer's; none where neither has one), "
           "none, the path of a Jinja file, or one of llama2, llama3, chatml, qwen, qwen3, mistral, alpaca, zephyr, "
           "gemma, phi3, vicuna."});
  keys.key("system", system,
           {.doc = "System message of conversations that have none; empty: the template's own default."});
  keys.key(
      "train_on", train_on,
      {.doc = "Tokens that are trained. completion: what follows the prompt; assistant: every turn of the assistant "
              "with its stop token; last: the last one of them; all. completion is last for a conversation that "
              "is not divided. auto: completion for rows that are divided into prompt and completion, assistant for "
              "other conversations, all for text."});
  keys.key("enable_thinking", enable_thinking,
           {.doc = "The template's variable enable_thinking; auto leaves it undefined."});
  keys.key("variables", variables, {.doc = "Further variables of the template, as name:value."});
  keys.key("parse_special", parse_special,
           {.doc = "Encode special tokens in the content of messages as tokens; otherwise they are text. Texts that no "
                   "template renders have their special tokens."});
}

void ChatConfig::resolve(DeckLoader& deck) const {
  const bool is_file = template_name.find_first_of("/.") != std::string::npos;
  if (template_name != "auto" && template_name != "none" && !is_file && find_named_template(template_name) == nullptr) {
    deck.fail("chat.template", unknown_template(template_name));
  }
  try {
    template_variables();
  } catch (const UserError& error) {
    deck.fail("chat.variables", error.what());
  }
}

ChatVariables ChatConfig::template_variables() const {
  ChatVariables result;
  if (enable_thinking != Thinking::automatic) result.emplace_back("enable_thinking", enable_thinking == Thinking::on);
  for (const std::string& entry : variables) {
    const size_t colon = entry.find(':');
    if (colon == 0 || colon == std::string::npos) {
      throw UserError(ExitCode::deck, fmt::format("'{}' must have the form name:value", entry));
    }
    const std::string name = entry.substr(0, colon), text = entry.substr(colon + 1);
    if (name == "messages" || name == "add_generation_prompt") {
      throw UserError(ExitCode::deck, fmt::format("{} cannot be given: every row sets this variable", name));
    }
    nlohmann::ordered_json value;
    try {
      value = parse_ordered_json(text, {}, max_variable_keys);
    } catch (const JsonError&) {
      value = text;
    }
    result.emplace_back(name, std::move(value));
  }
  return result;
}

}  // namespace llmtrain
