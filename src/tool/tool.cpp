#include "tool/tool.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string_view>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/terminal.hpp"

namespace llmtrain {
namespace {

constexpr Subcommand (*subcommands[])(CLI::App&) = {
    add_chat,   add_classify, add_compare,  add_convert,   add_corpus,  add_export,   add_export_viz, add_generate,
    add_import, add_inspect,  add_logprobs, add_merge,     add_prepare, add_quantize, add_report,     add_score,
    add_serve,  add_split,    add_sweep,    add_tokenizer, add_upcycle, add_validate, add_verify};

void refuse_unknown_subcommand(const std::vector<Subcommand>& known, std::string_view name) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const Subcommand& subcommand : known) names.push_back(subcommand.app->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  for (std::string_view valid : views) {
    if (valid == name) return;
  }
  refuse_command_line(fmt::format("no such subcommand '{}'{}", name, did_you_mean(name, views)));
}

/// Refuses arguments that the subcommand does not have.
void refuse_unknown_arguments(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  for (const std::string& argument : app.remaining()) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.starts_with("-")) refuse_command_line(fmt::format("no such option {}{}", name, did_you_mean(name, views)));
    refuse_command_line(fmt::format("unexpected argument '{}'", argument));
  }
}

/// Subcommands of a subcommand: returns the chosen one, or null.
const CLI::App* nested_of(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? nullptr : parsed.front();
}

void refuse_unknown_nested(const CLI::App& app) {
  const std::vector<const CLI::App*> nested = app.get_subcommands([](const CLI::App*) { return true; });
  if (nested.empty() || nested_of(app) != nullptr) return;
  std::vector<std::string> names;
  names.reserve(nested.size());
  for (const CLI::App* one : nested) names.push_back(one->get_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::vector<std::string> rest = app.remaining();
  const std::string name = rest.empty() ? std::string() : rest.front();
  if (name.empty() || name.starts_with("-")) {
    refuse_command_line(fmt::format("{}: name one of {}", app.get_name(), joined(names)));
  }
  refuse_command_line(fmt::format("{}: no such subcommand '{}'{}", app.get_name(), name, did_you_mean(name, views)));
}

const Subcommand* chosen_of(const std::vector<Subcommand>& subcommands_added) {
  for (const Subcommand& subcommand : subcommands_added) {
    if (subcommand.app->parsed()) return &subcommand;
  }
  return nullptr;
}

int parse_and_run(int argc, const char* const* argv) {
  CLI::App program("Tasks before and after a training job of llmtrain.", "llmtool");
  program.set_help_flag("-h,--help", "print this text; after a subcommand, its options");
  program.set_version_flag("--version", std::string("llmtool ") + LLMTRAIN_VERSION, "version");
  std::vector<Subcommand> added;
  for (const auto& add : subcommands) {
    added.push_back(add(program));
    added.back().app->allow_extras();
    added.back().app->set_help_flag("-h,--help", "print this text");
    for (CLI::App* nested : added.back().app->get_subcommands([](CLI::App*) { return true; })) {
      nested->allow_extras();
      nested->set_help_flag("-h,--help", "print this text");
    }
  }
  if (argc < 2) {
    std::cerr << program.help();
    return static_cast<int>(ExitCode::command_line);
  }
  if (argv[1][0] != '-') refuse_unknown_subcommand(added, argv[1]);
  program.allow_extras();
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {  // help or version
    return program.exit(request, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    // A misspelt option explains why a required one is missing.
    if (const Subcommand* chosen = chosen_of(added)) {
      refuse_unknown_nested(*chosen->app);
      const CLI::App* nested = nested_of(*chosen->app);
      refuse_unknown_arguments(nested != nullptr ? *nested : *chosen->app);
    }
    refuse_command_line(error.what());
  }
  refuse_unknown_arguments(program);
  const Subcommand* chosen = chosen_of(added);
  if (chosen == nullptr) refuse_command_line("a subcommand is required");
  refuse_unknown_nested(*chosen->app);
  refuse_unknown_arguments(*chosen->app);
  if (const CLI::App* nested = nested_of(*chosen->app)) refuse_unknown_arguments(*nested);
  chosen->run();
  return static_cast<int>(ExitCode::finished);
}

}  // namespace

void require_other_folder(const std::string& model, const std::string& output) {
  std::error_code none;
  if (!std::filesystem::equivalent(model, output, none)) return;
  refuse_command_line(
      fmt::format("--output {} is the folder of the model itself, whose files would be replaced", output));
}

void refuse_command_line(const std::string& what) {
  throw UserError(ExitCode::command_line, fmt::format("command line: {} (-h shows the usage)", what));
}

int64_t parse_count_option(const std::string& option, const std::string& text, const ValueRange& range) {
  try {
    return parse_count(text, range);
  } catch (const UserError& error) {
    refuse_command_line(fmt::format("{}: {}", option, error.what()));
  }
}

std::string parse_separator_option(const std::string& text) {
  if (text == "none") return "";
  if (text == "blank_line") return "\n\n";
  try {
    return parse_text(text);
  } catch (const UserError& error) {
    refuse_command_line(std::string("--document-separator: ") + error.what());
  }
}

void RowOptions::add_to(CLI::App& app) {
  app.add_option("--row-limit", limit, "maximum bytes of a row of JSON")->capture_default_str();
  app.add_flag("--json-as-text", json_as_text,
               "treat files that do not end in .jsonl, .ndjson or .jsonlines as text even if they hold JSON");
}

TextFormat RowOptions::format(const std::string& separator, const std::string& column) const {
  return {parse_separator_option(separator), column,
          parse_count_option("--row-limit", limit, between(1, static_cast<double>(max_row_limit))), json_as_text};
}

std::string RowOptions::command() const {
  std::string text = limit != RowOptions().limit ? " --row-limit " + limit : "";
  if (json_as_text) text += " --json-as-text";
  return text;
}

ProgressReport terminal_report() {
  return [](const std::string& line) {
    if (!line.ends_with(" %")) std::cerr << without_controls(line) << '\n';
  };
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) std::cerr << "warning: " << without_controls(warning) << '\n';
}

int run_tool(int argc, const char* const* argv) {
  LiveLine live(stderr);
  const ProgressScope display(live.active() ? &live : nullptr);
  try {
    const int code = parse_and_run(argc, argv);
    std::cout.flush();
    if (!std::cout)
      throw UserError(ExitCode::io, "standard output: it cannot be written; check whether a disk is full");
    return code;
  } catch (const UserError& error) {
    std::cerr << "llmtool: " << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "llmtool: internal error: " << without_controls(error.what()) << '\n';
    return static_cast<int>(ExitCode::internal);
  }
}

}  // namespace llmtrain
