#pragma once
// Options of the subcommands that read conversations, named like the keys of [data] and [chat].

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "text/chat/chat_config.hpp"

namespace llmtrain {

struct ConversationOptions {
  std::string format = "auto", template_name = "auto", train_on = "auto";
  std::vector<std::string> columns;
  std::string system;
  std::vector<std::string> variables;
  bool parse_special = false;

  void add_to(CLI::App& app);
  bool given() const { return format != "auto" || !columns.empty(); }  ///< True if the format of rows is
  /// Puts format and columns into the rules for files. UserError(command_line).
  void put_into(TextFormat& rules) const;
  ChatConfig chat() const;  ///< UserError(command_line)
  std::string command() const;
};

/// Parses --train-on. UserError(command_line).
ChatConfig::TrainOn parse_train_on(const std::string& name);

}  // namespace llmtrain
