#pragma once
// llmtool: what is done before and after a job. One file per subcommand; the list is in tool.cpp.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "core/deck/deck_value.hpp"
#include "data/files/text_source.hpp"
#include "hf/safetensors.hpp"

namespace llmtrain {

/// A subcommand that was added to the program. `run` comes after the command line was found right; it does the work and
/// throws UserError.
struct Subcommand {
  CLI::App* app;
  std::function<void()> run;
};

Subcommand add_corpus(CLI::App& program);
Subcommand add_export(CLI::App& program);
Subcommand add_generate(CLI::App& program);
Subcommand add_import(CLI::App& program);
Subcommand add_inspect(CLI::App& program);
Subcommand add_logprobs(CLI::App& program);
Subcommand add_prepare(CLI::App& program);
Subcommand add_split(CLI::App& program);
Subcommand add_tokenizer(CLI::App& program);
/// `train`, a subcommand of tokenizer.
Subcommand add_tokenizer_train(CLI::App& tokenizer);
Subcommand add_validate(CLI::App& program);
Subcommand add_verify(CLI::App& program);

/// The whole program; returns its exit code (interface.md).
int run_tool(int argc, const char* const* argv);

/// Throws UserError(ExitCode::command_line) that points to the help.
[[noreturn]] void refuse_command_line(const std::string& what);
/// On the standard error stream, each as "warning: ...".
void print_warnings(const std::vector<std::string>& warnings);
/// Of --document-separator, as the deck's data.document_separator is read.
std::string parse_separator_option(const std::string& text);
/// Options of every subcommand that reads text and rows.
struct RowOptions {
  std::string limit = "1GiB";
  bool json_as_text = false;

  void add_to(CLI::App& app);
  TextFormat format(const std::string& separator, const std::string& column = "text") const;
  std::string command() const;  ///< what of them is not the default
};
/// --dtype
StoredType parse_weight_type_option(const std::string& text);
/// The value of an option that takes a size or count, read as a deck reads it.
int64_t parse_count_option(const std::string& option, const std::string& text, const ValueRange& range);

}  // namespace llmtrain
