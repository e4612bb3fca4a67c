#include "tool/conversation_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "data/formats/row_format.hpp"
#include "tool/tool.hpp"

namespace llmtrain {

ChatConfig::TrainOn parse_train_on(const std::string& name) {
  const auto& names = enum_names<ChatConfig::TrainOn>;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    refuse_command_line(fmt::format("--train-on: {} must be one of {}", name, joined(names)));
  }
  return static_cast<ChatConfig::TrainOn>(found - names.begin());
}

void ConversationOptions::add_to(CLI::App& app) {
  app.add_option("--format", format,
                 "format of rows: auto, text, or of conversations: messages, sharegpt, prompt_completion, "
                 "alpaca, or of preferences: preference, unpaired")
      ->capture_default_str();
  app.add_option("--columns", columns, "other names of columns, role:column as in data.columns")->delimiter(',');
  app.add_option("--template", template_name, "chat template as in chat.template")->capture_default_str();
  app.add_option("--train-on", train_on,
                 "tokens that are trained, as in chat.train_on: auto, completion, assistant, "
                 "last or all")
      ->capture_default_str();
  app.add_option("--system", system, "system message of conversations that have none, as in chat.system");
  app.add_option("--variables", variables, "variables of the template, name:value as in chat.variables")
      ->delimiter(',');
  app.add_flag("--parse-special", parse_special, "special tokens in rows are tokens, as in chat.parse_special");
}

void ConversationOptions::put_into(TextFormat& rules) const {
  if (format != "auto" && find_row_format(format) == nullptr) {
    std::vector<std::string_view> names = {"auto"};
    for (const RowFormat* known : row_formats()) names.push_back(known->name);
    refuse_command_line(
        fmt::format("--format: {} must be one of {}{}", format, joined(names), did_you_mean(format, names)));
  }
  ColumnNames names;
  try {
    names = parse_columns(columns, format);
  } catch (const UserError& error) {
    refuse_command_line(fmt::format("--columns: {}", error.what()));
  }
  rules.row_format = format;
  rules.columns = columns;
  const auto text = std::ranges::find(names, "text", &ColumnNames::value_type::first);
  if (text == names.end()) {
    const bool names_others =
        std::ranges::any_of(names, [](const auto& name) { return name.first != difficulty_column; });
    if (!names_others && rules.column != "text") rules.columns.push_back("text:" + rules.column);
    return;
  }
  if (rules.column != "text" && rules.column != text->second) {
    refuse_command_line("--columns: it names a different text column than --text-column; give one of them");
  }
  rules.column = text->second;
}

ChatConfig ConversationOptions::chat() const {
  ChatConfig chat;
  chat.template_name = template_name;
  chat.train_on = parse_train_on(train_on);
  chat.system = system;
  chat.variables = variables;
  chat.parse_special = parse_special;
  try {
    chat.template_variables();
  } catch (const UserError& error) {
    refuse_command_line(fmt::format("--variables: {}", error.what()));
  }
  return chat;
}

std::string ConversationOptions::command() const {
  std::string text;
  if (format != "auto") text += " --format " + format;
  if (!columns.empty()) text += " --columns " + joined(columns, ",");
  if (template_name != "auto") text += " --template " + template_name;
  if (train_on != "auto") text += " --train-on " + train_on;
  if (!system.empty()) text += " --system " + system;
  if (!variables.empty()) text += " --variables " + joined(variables, ",");
  if (parse_special) text += " --parse-special";
  return text;
}

}  // namespace llmtrain
