// llmtool validate: whether text and rows can be trained on, and what they are like.

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "data/files/input_kind.hpp"
#include "data/quality/data_report.hpp"
#include "data/tokenize/named_tokenizer.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/local_communicator.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

struct ValidateOptions {
  std::vector<std::string> inputs;
  std::string column = "text", separator = "none", tokenizer, huge = "1MiB", limit = "64GiB";
  RowOptions rows;
  bool json = false;
};

/// The token for what the tokenizer does not know, by the names that are usual; -1: none.
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

void validate(const ValidateOptions& options) {
  const std::vector<InputFile> files =
      find_input_files(options.inputs, options.rows.format(options.separator, options.column));
  const ProgressReport report_line = [](const std::string& line) { std::cerr << without_controls(line) << '\n'; };
  report_notes(files, report_line);
  for (const InputFile& file : files) {
    if (is_encoded(file.kind)) continue;
    throw UserError(ExitCode::bad_content, file.path + ": it holds token ids, not text (llmtool inspect shows them)");
  }
  ReportOptions report_options;
  const std::shared_ptr<const Tokenizer> tokenizer =
      options.tokenizer.empty() ? nullptr : open_tokenizer(options.tokenizer);
  report_options.check = {options.column, tokenizer.get(), unknown_id_of(tokenizer.get())};
  report_options.huge_bytes = parse_count_option("--huge", options.huge, at_least(1));
  report_options.unpacked_limit = parse_count_option("--unpacked-limit", options.limit, at_least(1));
  report_options.threads = worker_threads(*make_local_communicator());
  const Json report = make_data_report(files, report_options, report_line);
  if (options.json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print_report(report);
  }
  if (!report["usable"].get<bool>()) {
    throw UserError(ExitCode::bad_content, "the data cannot be trained on as it is: see the report");
  }
}

}  // namespace

Subcommand add_validate(CLI::App& program) {
  CLI::App* app = program.add_subcommand("validate", "check text and rows: encoding, duplicates, lengths, tokens");
  const auto options = std::make_shared<ValidateOptions>();
  app->add_option("input", options->inputs, "files or patterns: text or rows of JSON, also .gz, .zst")->required();
  app->add_option("--text-column", options->column, "key of the text in rows")->capture_default_str();
  app->add_option("--document-separator", options->separator,
                  "of text: none (a file is one document), blank_line, or a text with \\n, \\t as in the deck")
      ->capture_default_str();
  app->add_option("--tokenizer", options->tokenizer,
                  "counts tokens: bytes, a token file whose tokenizer is used, or a tokenizer's file or folder");
  app->add_option("--huge", options->huge, "bytes above which a document is named")->capture_default_str();
  app->add_option("--unpacked-limit", options->limit, "bytes that a compressed file may give")->capture_default_str();
  options->rows.add_to(*app);
  app->add_flag("--json", options->json, "the report as JSON");
  return {app, [options] { validate(*options); }};
}

}  // namespace llmtrain
