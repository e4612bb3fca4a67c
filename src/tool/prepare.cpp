// llmtool prepare: converts text or rows of token ids to a token file, with llmtrain's own tokenization.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <vector>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "data/dataset.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/token_file.hpp"
#include "data/quality/chat_lint.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "data/tokenize/tokenize.hpp"
#include "parallel/local_communicator.hpp"
#include "tool/conversation_options.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"
#include "tool/work_folder.hpp"

namespace llmtrain {
namespace {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string tokenizer;
  std::string eos_token;
  std::string output;
  std::string separator = "none";
  std::string column = "text";
  RowOptions rows;
  ConversationOptions conversations;
  std::vector<std::string> added;  ///< as data.add_tokens
  double fim_rate = DataConfig().fim_rate, fim_spm_rate = DataConfig().fim_spm_rate;
  std::vector<std::string> fim_tokens = DataConfig().fim_tokens;
  bool add_bos = false;
  bool force = false;
};

std::unique_ptr<Tokenizer> choose_tokenizer(const PrepareOptions& options, const SourceScan& scan) {
  if (options.tokenizer.empty() || options.tokenizer == "char") {
    return make_char_tokenizer(scan.code_points, options.add_bos);
  }
  return open_tokenizer(options.tokenizer, {options.eos_token, true, options.add_bos, options.added});
}

InputKind kind_of_all(const std::vector<InputFile>& files) {
  for (const InputFile& file : files) {
    if (file.kind == InputKind::tokens) {
      throw UserError(ExitCode::bad_content, file.path + ": it is a token file already");
    }
    if (is_encoded(file.kind) != is_encoded(files.front().kind)) {
      throw UserError(ExitCode::bad_content, files.front().path + " and " + file.path +
                                                 ": text and rows of input_ids cannot be mixed in one token file");
    }
  }
  return files.front().kind;
}

std::string command_of(const PrepareOptions& options) {
  std::string command = "llmtool prepare --input " + joined(options.inputs, " ");
  if (!options.tokenizer.empty()) command += " --tokenizer " + options.tokenizer;
  if (options.separator != "none") command += " --document-separator " + options.separator;
  if (!options.eos_token.empty()) command += " --eos-token " + options.eos_token;
  if (options.column != "text") command += " --text-column " + options.column;
  if (options.add_bos) command += " --add-bos";
  if (options.fim_rate > 0) {
    command += fmt::format(" --fim-rate {} --fim-spm-rate {} --fim-tokens {}", options.fim_rate, options.fim_spm_rate,
                           joined(options.fim_tokens, ","));
  }
  if (!options.added.empty()) command += " --add-tokens " + joined(options.added, ",");
  command += options.conversations.command() + options.rows.command();
  return command + " --output " + options.output;
}

Infilling infilling_of(const PrepareOptions& options, const Tokenizer& tokenizer) {
  DataConfig config;
  config.fim_rate = options.fim_rate;
  config.fim_spm_rate = options.fim_spm_rate;
  config.fim_tokens = options.fim_tokens;
  const bool automatic = config.fim_tokens.size() == 1 && config.fim_tokens.front() == automatic_infilling_tokens;
  if (!automatic && config.fim_tokens.size() != 3) {
    refuse_command_line("--fim-tokens: give auto, or the tokens for prefix, middle and suffix");
  }
  return make_infilling(config, tokenizer);
}

/// Makes the encoder of conversations, if there are any: templates are in the tokenizer's folder, as in a run.
std::unique_ptr<const ChatEncoder> make_encoder(const TokenizeRequest& request, const PrepareOptions& options) {
  if (!has_kind(request.files, InputKind::instruction_rows)) return nullptr;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(options.tokenizer, ignored);
  return std::make_unique<const ChatEncoder>(*request.tokenizer, options.conversations.chat(),
                                             is_folder ? options.tokenizer : std::string(), training_time);
}

void prepare(const PrepareOptions& options) {
  check_token_file_output(options.output, options.force);
  const auto alone = make_local_communicator();
  const ProgressReport report = [](const std::string& line) { std::cerr << without_controls(line) << '\n'; };
  TokenizeRequest request;
  if (options.column == "input_ids" || options.column == "labels") {
    refuse_command_line("--text-column: " + options.column + " is a column of token ids, not text");
  }
  TextFormat format = options.rows.format(options.separator, options.column);
  options.conversations.put_into(format);
  request.files = find_input_files(options.inputs, format);
  for (const InputFile& file : request.files) check_difficulties(file);
  report_notes(request.files, report);
  InputSets inputs;
  inputs.sources = {request.files};
  check_infilling(inputs, options.fim_rate);
  const bool rows = !is_encoded(kind_of_all(request.files));
  if (rows && (!options.tokenizer.empty() || options.add_bos || options.separator != "none")) {
    refuse_command_line(
        "rows of input_ids are used unchanged; remove --tokenizer, --add-bos and "
        "--document-separator");
  }
  const WorkFolder folder(options.output);
  folder.unpack(request.files, *alone, report);
  request.scan = scan_sources(request.files, *alone, percent_report(report, "reading"));
  std::unique_ptr<Tokenizer> tokenizer;
  if (!rows) tokenizer = choose_tokenizer(options, request.scan);
  request.tokenizer = tokenizer.get();
  const std::unique_ptr<const ChatEncoder> encoder = make_encoder(request, options);
  request.encoder = encoder.get();
  // Tokenizers of characters and bytes have the token if they were made to use it.
  request.add_bos = !rows && tokenizer->bos_id() >= 0 && (options.add_bos || tokenizer->files().empty());
  request.once = has_kind(request.files, InputKind::text_rows);
  if (!rows) request.infilling = infilling_of(options, *tokenizer);
  request.output = options.output;
  request.command = command_of(options);
  tokenize_to_file(request, *alone, report);

  const auto file = open_token_file(options.output);
  const TokenFileInfo& info = file->info();
  std::cout << fmt::format("{}: {} tokens in {} documents, vocabulary {}\n", options.output, info.tokens,
                           info.documents, info.vocabulary_size);
  if (const std::string found = describe_rows(*file); !found.empty()) std::cout << found << '\n';
  if (encoder) print_warnings(lint_first_rows(request.files, *encoder));
  if (info.skipped_documents > 0) {
    std::cout << fmt::format("{} empty documents were skipped\n", info.skipped_documents);
  }
}

}  // namespace

Subcommand add_prepare(CLI::App& program) {
  CLI::App* app = program.add_subcommand("prepare", "make a token file from text, conversations, or rows of token ids");
  const auto options = std::make_shared<PrepareOptions>();
  app->add_option("--input", options->inputs,
                  "input files or globs: text, rows of JSON with a column of text or a conversation, or rows with "
                  "input_ids and optional attention_mask (0: omitted) and labels (-100: not a target); all also as "
                  ".gz and .zst; or tables with such columns (.parquet, .arrow, .feather, .csv, .tsv)")
      ->required();
  app->add_option("--tokenizer", options->tokenizer,
                  "char (default), bytes, a token file for its tokenizer (as validation text needs), or a "
                  "tokenizer.json, SentencePiece model, tiktoken file of ranks, vocab.json or folder");
  app->add_option("--eos-token", options->eos_token, "token that ends a document, if no file names it");
  app->add_option(
         "--document-separator", options->separator,
         "separator of documents: none (a file is one document), blank_line, or a text with \\n, \\t as in the deck")
      ->capture_default_str();
  app->add_option("--text-column", options->column, "key of the text in rows without input_ids")->capture_default_str();
  options->conversations.add_to(*app);
  app->add_option("--add-tokens", options->added, "further special tokens, as in data.add_tokens")->delimiter(',');
  app->add_option("--fim-rate", options->fim_rate, "share of texts cut for fill-in-the-middle, as data.fim_rate")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--fim-spm-rate", options->fim_spm_rate, "share of these whose suffix comes first")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--fim-tokens", options->fim_tokens, "tokens for prefix, middle and suffix, as data.fim_tokens")
      ->delimiter(',');
  options->rows.add_to(*app);
  app->add_flag("--add-bos", options->add_bos, "begin every document with a begin-of-text token");
  app->add_option("--output", options->output, "output token file, ending in .h5")->required();
  app->add_flag("--force", options->force, "overwrite the file");
  return {app, [options] { prepare(*options); }};
}

}  // namespace llmtrain
