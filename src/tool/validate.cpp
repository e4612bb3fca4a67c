// llmtool validate: checks text and rows for training and describes them.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "data/files/input_kind.hpp"
#include "data/quality/data_report.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/local_communicator.hpp"
#include "tool/conversation_options.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

struct ValidateOptions {
  std::vector<std::string> inputs;
  std::string column = "text", separator = "none", tokenizer, huge = "1MiB", limit = "64GiB";
  RowOptions rows;
  bool json = false;
  // Rows of conversations:
  std::string model, length = "0";
  ConversationOptions conversations;
};

/// Finds the files; rows that fit no format are examined as rows of text.
std::vector<InputFile> find_files(const ValidateOptions& options) {
  TextFormat format = options.rows.format(options.separator, options.column);
  options.conversations.put_into(format);
  if (options.conversations.given()) return find_input_files(options.inputs, format);
  std::string unknown;
  try {
    return find_input_files(options.inputs, format);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::bad_content) throw;
    unknown = error.what();
  }
  format.row_format = "text";
  format.columns = {};
  std::vector<InputFile> files = find_input_files(options.inputs, format);
  files.front().notes.push_back(unknown + ". The rows are examined as texts");
  return files;
}

/// Returns the tokenizer's unknown token by its usual names, -1 if there is none.
int32_t unknown_id_of(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || tokenizer->files().empty()) return -1;
  for (int32_t id = 0; id < tokenizer->vocabulary_size(); ++id) {
    const std::string token = tokenizer->token(id);
    if (token == "<unk>" || token == "[UNK]") return id;
  }
  return -1;
}

void print_lengths(const std::string& of, const Json& facts) {
  if (facts.is_null()) return;
  std::cout << fmt::format("length in {}: {} shortest, {:.1f} mean, {} median, {} at 95 %, {} at 99 %, {} longest\n",
                           of, facts["shortest"].get<int64_t>(), facts["mean"].get<double>(),
                           facts["median"].get<int64_t>(), facts["p95"].get<int64_t>(), facts["p99"].get<int64_t>(),
                           facts["longest"].get<int64_t>());
  int64_t most = 1;
  for (const Json& entry : facts["histogram"]) most = std::max(most, entry[1].get<int64_t>());
  for (const Json& entry : facts["histogram"]) {
    const auto count = entry[1].get<int64_t>();
    std::cout << fmt::format("  {:>10} or more {:>10} {}\n", entry[0].get<int64_t>(), count,
                             std::string(static_cast<size_t>(1 + 39 * count / most), '#'));
  }
}

std::string text_of(const Json& value) { return without_controls(value.get<std::string>()); }

void print_pairs(const std::string& what, const Json& pairs) {
  for (const Json& pair : pairs) {
    std::cout << fmt::format("  {}: {} document {} and {} document {}\n", what, text_of(pair[0]["file"]),
                             pair[0]["document"].get<int64_t>(), text_of(pair[1]["file"]),
                             pair[1]["document"].get<int64_t>());
  }
}

void print_report(const Json& report) {
  const auto number = [&](const char* key) { return report[key].get<int64_t>(); };
  std::cout << fmt::format("documents {}, {} bytes, {} characters\n", number("documents"), number("bytes"),
                           number("characters"));
  std::cout << fmt::format("empty {}, only white space {}, huge {}\n", number("empty"), number("blank"),
                           number("huge"));
  std::cout << fmt::format("broken rows {}, documents that are not UTF-8 {}\n", number("broken_rows"),
                           number("encoding_errors"));
  std::cout << fmt::format("duplicates: {} exact, {} near\n", report["duplicates"]["exact"].get<int64_t>(),
                           report["duplicates"]["near"].get<int64_t>());
  if (report.contains("tokens")) {
    std::cout << fmt::format("tokens {}: {:.4f} a character, {} unknown ({:.4f} %)\n", number("tokens"),
                             report["tokens_per_character"].get<double>(), number("unknown"),
                             100 * report["unknown_share"].get<double>());
  }
  print_lengths("characters", report["length"]["characters"]);
  if (report["length"].contains("tokens")) print_lengths("tokens", report["length"]["tokens"]);
  for (const Json& problem : report["problems"]) {
    std::cout << fmt::format("  {}:{}: byte {}: {}\n", text_of(problem["file"]), problem["line"].get<int64_t>(),
                             problem["byte"].get<int64_t>(), text_of(problem["what"]));
  }
  for (const Json& place : report["huge_documents"]) {
    std::cout << fmt::format("  {}:{}: a document of {} bytes\n", text_of(place["file"]), place["line"].get<int64_t>(),
                             place["bytes"].get<int64_t>());
  }
  print_pairs("exact duplicate", report["exact_duplicates"]);
  print_pairs("near duplicate", report["near_duplicates"]);
}

void print_conversations(const Json& report) {
  const auto number = [&](const char* key) { return report[key].get<int64_t>(); };
  std::cout << fmt::format("rows {}, broken rows {}\n", number("rows"), number("broken_rows"));
  for (const Json& file : report["files"]) {
    std::cout << fmt::format("  {}: {} rows of format {}\n", text_of(file["path"]), file["rows"].get<int64_t>(),
                             text_of(file["format"]));
  }
  if (report.contains("pairs")) std::cout << fmt::format("pairs {}\n", number("pairs"));
  if (report.contains("equal")) {
    std::cout << fmt::format("pairs of equal answers {}, rows with an empty answer {}\n", number("equal"),
                             number("empty"));
  }
  std::cout << fmt::format("duplicates: {} exact, {} near\n", report["duplicates"]["exact"].get<int64_t>(),
                           report["duplicates"]["near"].get<int64_t>());
  if (report.contains("template")) {
    const std::string name = text_of(report["template"]);
    std::cout << fmt::format("chat template {}; rows without a token to train on {}, without a stop token {}\n",
                             name.starts_with("template ") ? name.substr(9) : name, number("untrained"),
                             number("without_stop"));
    std::cout << fmt::format(
        "rows longer than a sample {}, of which {} lose all tokens to train on; a token joins prompt and completion in "
        "{}\n",
        number("truncated"), number("lost_targets"), number("merged_borders"));
  }
  for (const auto& [of, facts] : report["length"].items()) {
    print_lengths(of == "trained_tokens"                                           ? "tokens to train on"
                  : of == "rejected_tokens"                                        ? "tokens of rejected"
                  : of == "tokens" && report["length"].contains("rejected_tokens") ? "tokens of chosen"
                                                                                   : of,
                  facts);
  }
  for (const Json& problem : report["problems"]) {
    std::cout << fmt::format("  {}:{}: {}\n", text_of(problem["file"]), problem["line"].get<int64_t>(),
                             text_of(problem["what"]));
  }
  for (const Json& warning : report["warnings"]) std::cout << "warning: " << text_of(warning) << '\n';
}

Json report_on_conversations(const std::vector<InputFile>& files, const ValidateOptions& options,
                             const ProgressReport& report_line) {
  for (const InputFile& file : files) {
    if (file.kind == InputKind::instruction_rows) continue;
    throw UserError(ExitCode::command_line,
                    file.path + ": it holds text, and other files hold conversations; validate them one by one");
  }
  const std::string& folder = options.model.empty() ? options.tokenizer : options.model;
  const std::shared_ptr<const Tokenizer> tokenizer = folder.empty() ? nullptr : open_tokenizer(folder);
  std::unique_ptr<const ChatEncoder> encoder;
  std::error_code ignored;
  if (tokenizer != nullptr) {
    const bool is_folder = std::filesystem::is_directory(folder, ignored);
    encoder = std::make_unique<const ChatEncoder>(*tokenizer, options.conversations.chat(),
                                                  is_folder ? folder : std::string(), training_time);
  }
  ConversationReportOptions report_options;
  report_options.encoder = encoder.get();
  report_options.sequence_length = parse_count_option("--sequence-length", options.length, between(0, 1 << 24));
  report_options.unpacked_limit = parse_count_option("--unpacked-limit", options.limit, at_least(1));
  report_options.threads = worker_threads(*make_local_communicator());
  return make_conversation_report(files, report_options, report_line);
}

void finish_validation(const Json& report, const ValidateOptions& options, void (*print)(const Json&)) {
  if (options.json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print(report);
  }
  if (!report["usable"].get<bool>()) {
    throw UserError(ExitCode::bad_content, "the data cannot be used for training; see the report");
  }
}

void validate(const ValidateOptions& options) {
  const std::vector<InputFile> files = find_files(options);
  const ProgressReport report_line = [](const std::string& line) { std::cerr << without_controls(line) << '\n'; };
  report_notes(files, report_line);
  if (has_kind(files, InputKind::instruction_rows)) {
    return finish_validation(report_on_conversations(files, options, report_line), options, print_conversations);
  }
  for (const InputFile& file : files) {
    if (is_encoded(file.kind)) continue;
    throw UserError(ExitCode::bad_content, file.path + ": it holds token ids, not text (llmtool inspect shows them)");
  }
  ReportOptions report_options;
  const std::shared_ptr<const Tokenizer> tokenizer =
      options.tokenizer.empty() ? nullptr : open_tokenizer(options.tokenizer);
  report_options.check = {files.front().format.column, tokenizer.get(), unknown_id_of(tokenizer.get())};
  report_options.huge_bytes = parse_count_option("--huge", options.huge, at_least(1));
  report_options.unpacked_limit = parse_count_option("--unpacked-limit", options.limit, at_least(1));
  report_options.threads = worker_threads(*make_local_communicator());
  const Json report = make_data_report(files, report_options, report_line);
  finish_validation(report, options, print_report);
}

}  // namespace

Subcommand add_validate(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "validate", "check text and conversations: encoding, duplicates, lengths, tokens to train on");
  const auto options = std::make_shared<ValidateOptions>();
  app->add_option("input", options->inputs,
                  "input files or globs: text or rows of JSON, also as .gz and .zst, or tables")
      ->required();
  app->add_option("--text-column", options->column, "key of the text in rows")->capture_default_str();
  app->add_option(
         "--document-separator", options->separator,
         "separator of documents: none (a file is one document), blank_line, or a text with \\n, \\t as in the deck")
      ->capture_default_str();
  app->add_option("--tokenizer", options->tokenizer,
                  "tokenizer for token counts: bytes, a token file, or a tokenizer's file or folder");
  app->add_option("--huge", options->huge, "size in bytes above which a document is listed")->capture_default_str();
  app->add_option("--unpacked-limit", options->limit, "maximum unpacked bytes of a compressed file")
      ->capture_default_str();
  options->conversations.add_to(*app);
  app->add_option("--model", options->model, "for conversations: folder of the model's tokenizer and chat template");
  app->add_option("--sequence-length", options->length,
                  "count conversations that are longer, as batch.sequence_length; "
                  "0: no limit")
      ->capture_default_str();
  options->rows.add_to(*app);
  app->add_flag("--json", options->json, "print the report as JSON");
  return {app, [options] { validate(*options); }};
}

}  // namespace llmtrain
