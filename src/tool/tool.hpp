#pragma once
// llmtool: tasks before and after a training job. One file per subcommand; tool.cpp lists them.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "core/deck/deck_value.hpp"
#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "hf/weights/safetensors.hpp"

namespace llmtrain {

/// A subcommand of the program. `run` is called after the command line was parsed; it does the work and throws
/// UserError.
struct Subcommand {
  CLI::App* app;
  std::function<void()> run;
};

Subcommand add_chat(CLI::App& program);
Subcommand add_classify(CLI::App& program);
Subcommand add_compare(CLI::App& program);
Subcommand add_convert(CLI::App& program);
Subcommand add_corpus(CLI::App& program);
Subcommand add_export(CLI::App& program);
Subcommand add_export_viz(CLI::App& program);
Subcommand add_generate(CLI::App& program);
Subcommand add_import(CLI::App& program);
Subcommand add_inspect(CLI::App& program);
Subcommand add_logprobs(CLI::App& program);
Subcommand add_merge(CLI::App& program);
Subcommand add_quantize(CLI::App& program);
Subcommand add_prepare(CLI::App& program);
Subcommand add_report(CLI::App& program);
Subcommand add_score(CLI::App& program);
Subcommand add_serve(CLI::App& program);
Subcommand add_split(CLI::App& program);
Subcommand add_sweep(CLI::App& program);
Subcommand add_tokenizer(CLI::App& program);
/// Adds `train`, a subcommand of tokenizer.
Subcommand add_tokenizer_train(CLI::App& tokenizer);
Subcommand add_upcycle(CLI::App& program);
Subcommand add_validate(CLI::App& program);
Subcommand add_verify(CLI::App& program);

/// Runs the whole program; returns its exit code (interface.md).
int run_tool(int argc, const char* const* argv);

/// Throws UserError(ExitCode::command_line) that refers to the help.
[[noreturn]] void refuse_command_line(const std::string& what);
/// Refuses an output that is the folder of the model that is read, whose files it would replace.
void require_other_folder(const std::string& model, const std::string& output);
/// Prints lines on the standard error stream, but those of progress, "what: 40 %".
ProgressReport terminal_report();
/// Prints warnings on the standard error stream, each as "warning: ...".
void print_warnings(const std::vector<std::string>& warnings);
/// Parses --document-separator like the deck's data.document_separator.
std::string parse_separator_option(const std::string& text);
/// Options of all subcommands that read text and rows.
struct RowOptions {
  std::string limit = "1GiB";
  bool json_as_text = false;

  void add_to(CLI::App& app);
  TextFormat format(const std::string& separator, const std::string& column = "text") const;
  std::string command() const;  ///< Returns the options that are not the default
};
/// Parses --dtype.
StoredType parse_weight_type_option(const std::string& text);
/// Parses an option with a size or count like a deck value.
int64_t parse_count_option(const std::string& option, const std::string& text, const ValueRange& range);

}  // namespace llmtrain
