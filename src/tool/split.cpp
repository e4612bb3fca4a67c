// llmtool split: divides the documents of a file into training and validation data.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "core/philox.hpp"
#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/token_file.hpp"
#include "data/files/token_file_writer.hpp"
#include "data/progress.hpp"
#include "data/stream/sample_order.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t copy_tokens = int64_t{1} << 20;

struct SplitOptions {
  std::string input, train, validation;
  std::string separator = "none", column = "text";
  double fraction = 0.1;
  std::string seed = "42";
  std::string limit = "64GiB";
  RowOptions rows;
  bool force = false;
};

/// Selects the validation documents: exactly round(fraction x documents) of them, a function of the seed.
class Selection {
 public:
  Selection(int64_t documents, const SplitOptions& options)
      : chosen_(std::llround(options.fraction * static_cast<double>(documents))),
        order_(std::max<int64_t>(1, documents), random_key(seed_of(options), RandomPurpose::sample_order, UINT64_MAX)) {
    if (chosen_ > 0 && chosen_ < documents) return;
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: of {} documents, {} would be for validation; both sides need one (try another "
                                "--fraction or --document-separator)",
                                options.input, documents, chosen_));
  }
  bool operator()(int64_t document) const { return order_(document) < chosen_; }
  int64_t chosen() const { return chosen_; }

 private:
  static uint64_t seed_of(const SplitOptions& options) {
    return static_cast<uint64_t>(parse_count_option("--seed", options.seed, at_least(0)));
  }

  int64_t chosen_;
  SampleOrder order_;
};

void report_split(const SplitOptions& options, int64_t documents, int64_t chosen, const std::string& amounts) {
  std::cout << fmt::format("{}: {} documents; {}: {} documents ({})\n", options.train, documents - chosen,
                           options.validation, chosen, amounts);
}

/// Recognises segments that are not documents: blank lines, empty rows and empty texts. Rows of JSON without the column
/// of the text are only checked as JSON, since other programs may use them.
class EmptyDocuments {
 public:
  explicit EmptyDocuments(const InputFile& input) : input_(input) {}

  /// UserError (bad_content) for a row that cannot be read.
  bool operator()(const DocumentSegment& segment) {
    if (!segment.first || !segment.last) return false;
    if (input_.kind == InputKind::text) return segment.text.empty();
    if (is_blank(segment.text)) return true;
    try {
      return is_empty_row(segment.text);
    } catch (const RowError& error) {
      if (input_.table != TableKind::none) {
        throw UserError(error.code(), fmt::format("{}: {}", place_of_line(input_.path, segment.line), error.reason()));
      }
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}:{}: byte {}: {}", input_.path, segment.line,
                                  segment.offset + static_cast<int64_t>(error.byte()), error.reason()));
    }
  }

 private:
  bool is_empty_row(std::string_view line) {
    if (input_.kind == InputKind::token_rows) {
      parse_token_row(line, row_);
      return row_.ids.empty();
    }
    if (!has_column_) {
      const std::vector<std::string> keys = row_keys(line);
      has_column_ = keys.empty() || std::ranges::find(keys, input_.format.column) != keys.end();
    }
    if (*has_column_) return !parse_text_row(line, input_.format.column, text_);
    check_row(line);
    return false;
  }

  const InputFile& input_;
  std::optional<bool> has_column_;  // of the first row
  TokenRow row_;
  std::string text_;
};

[[noreturn]] void refuse_long_row(const InputFile& input, const DocumentSegment& first, DocumentReader& reader) {
  auto bytes = static_cast<int64_t>(first.text.size());
  DocumentSegment segment;
  do {
    reader.next(segment);
    bytes += static_cast<int64_t>(segment.text.size());
  } while (!segment.last);
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}:{}: byte {}: {}", input.path, first.line, first.offset,
                              too_long_row(bytes - (segment.text.ends_with('\r') ? 1 : 0), input.format.row_limit)));
}

void split_text(const InputFile& input, const SplitOptions& options) {
  const int64_t limit = parse_count_option("--unpacked-limit", options.limit, at_least(1));
  const ProgressReport report = terminal_report();
  DocumentSegment segment;
  int64_t documents = 0;
  std::vector<bool> empty_segments;
  {
    EmptyDocuments is_empty(input);
    DocumentReader reader(input, limit);
    const auto progress = percent_report(report, "counting documents");
    while (reader.next(segment)) {
      if (input.kind != InputKind::text && !segment.last) refuse_long_row(input, segment, reader);
      empty_segments.push_back(is_empty(segment));
      documents += segment.last && !empty_segments.back() ? 1 : 0;
      progress(reader.progress());
    }
  }
  const Selection selection(documents, options);
  OutputFile train(options.train, options.force), validation(options.validation, options.force);
  int64_t bytes[2] = {0, 0}, document = 0;
  size_t segments = 0;
  OutputFile* side = &train;  // empty documents and blank lines stay with the document before them
  DocumentReader reader(input, limit);
  const auto progress = percent_report(report, "writing");
  const auto refuse_change = [&] {
    throw UserError(ExitCode::io, options.input + ": it was changed during reading; start again");
  };
  while (reader.next(segment)) {
    if (segments == empty_segments.size()) refuse_change();
    const bool empty = empty_segments[segments++];
    if (segment.first && !empty) side = selection(document) ? &validation : &train;
    side->write(segment.text);
    side->write(segment.behind);
    bytes[side == &validation ? 1 : 0] += static_cast<int64_t>(segment.text.size() + segment.behind.size());
    document += segment.last && !empty ? 1 : 0;
    progress(reader.progress());
  }
  if (document != documents || segments != empty_segments.size()) refuse_change();
  for (OutputFile* file : {&train, &validation}) file->close();  // both are complete before either gets its name
  validation.finish();
  train.finish();
  report_split(options, documents, selection.chosen(), fmt::format("{} and {} bytes", bytes[0], bytes[1]));
}

/// Token file that receives whole documents of another.
class TokenSide {
 public:
  TokenSide(const TokenFile& from, const std::string& path, const Selection& selection, bool validation)
      : from_(from), offsets_(1, 0) {
    const std::span<const uint64_t> all = from.documents();
    for (size_t d = 0; d + 1 < all.size(); ++d) {
      if (selection(static_cast<int64_t>(d) / from.info().group) != validation) continue;
      offsets_.push_back(offsets_.back() + all[d + 1] - all[d]);
      if (!from.values().empty()) values_.push_back(from.values()[d]);
    }
    TokenFileInfo info = from.info();
    info.tokens = static_cast<int64_t>(offsets_.back());
    info.characters = info.bytes = info.skipped_documents = 0;
    info.rows = {.used = info.rows.used > 0 ? (std::ssize(offsets_) - 1) / info.group : 0};
    info.command = "llmtool split of " + info.path + (info.command.empty() ? "" : ", made by " + info.command);
    writer_ = std::make_unique<TokenFileWriter>(path, info, offsets_, values_);
    region_ = std::make_unique<TokenRegionWriter>(writer_->target());
  }
  int64_t tokens() const { return static_cast<int64_t>(offsets_.back()); }

  void copy(int64_t begin, int64_t end) {
    for (; begin < end; begin += copy_tokens) {
      const int64_t n = std::min(copy_tokens, end - begin);
      ids_.resize(static_cast<size_t>(n));
      from_.read(begin, n, ids_.data());
      region_->write(written_, ids_);
      if (from_.info().has_mask) {
        mask_.resize(static_cast<size_t>(n));
        from_.read_mask(begin, n, mask_.data());
        region_->write_mask(written_, mask_);
      }
      written_ += n;
    }
  }
  void publish() {
    LLMTRAIN_CHECK(written_ == tokens(), "tokens are missing");
    writer_->publish();
  }

 private:
  const TokenFile& from_;
  std::vector<uint64_t> offsets_;
  std::vector<float> values_;
  std::unique_ptr<TokenFileWriter> writer_;
  std::unique_ptr<TokenRegionWriter> region_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> mask_;
  int64_t written_ = 0;
};

void split_tokens_of(const SplitOptions& options) {
  const auto file = open_token_file(options.input);
  const std::span<const uint64_t> all = file->documents();
  const int64_t group = file->info().group,
                documents = (static_cast<int64_t>(all.size()) - 1) / group;  // pairs are one
  const Selection selection(documents, options);
  TokenSide train(*file, options.train, selection, false), validation(*file, options.validation, selection, true);
  const auto progress = percent_report(terminal_report(), "writing");
  for (int64_t begin = 0; begin < documents;) {  // consecutive documents for the same output
    int64_t end = begin + 1;
    while (end < documents && selection(end) == selection(begin)) ++end;
    TokenSide& side = selection(begin) ? validation : train;
    side.copy(static_cast<int64_t>(all[static_cast<size_t>(begin * group)]),
              static_cast<int64_t>(all[static_cast<size_t>(end * group)]));
    begin = end;
    progress(static_cast<double>(end) / static_cast<double>(documents));
  }
  validation.publish();
  train.publish();
  report_split(options, documents, selection.chosen(),
               fmt::format("{} and {} tokens", train.tokens(), validation.tokens()));
}

/// Outputs have the input's kind, which their ending shows.
void check_names(const SplitOptions& options, InputKind kind) {
  for (const std::string& path : {options.train, options.validation}) {
    const bool rows = names_rows(path), tokens = names_tokens(path);
    const bool right = kind == InputKind::tokens ? tokens
                       : kind == InputKind::text ? !rows && !tokens && compression_of(path) == Compression::none
                                                 : rows;
    if (right) continue;
    refuse_command_line(fmt::format("{}: an output of {} must end in {}", path, options.input,
                                    kind == InputKind::tokens ? ".h5"
                                    : kind == InputKind::text ? ".txt, uncompressed"
                                                              : ".jsonl, uncompressed"));
  }
  std::error_code ignored;
  if (std::filesystem::weakly_canonical(options.train, ignored) ==
      std::filesystem::weakly_canonical(options.validation, ignored)) {
    refuse_command_line("--train and --validation name the same file");
  }
  for (const std::string& path : {options.train, options.validation}) {
    if (path == "-") refuse_command_line("the outputs must be files, not -");
    if (std::filesystem::equivalent(path, options.input, ignored)) {
      refuse_command_line(path + ": it is the input");
    }
    if (std::filesystem::is_directory(path, ignored)) {
      throw UserError(ExitCode::cannot_create, path + ": cannot create it: it is a folder; name a file");
    }
    if (kind == InputKind::tokens && !options.force && std::filesystem::exists(path, ignored)) {
      throw UserError(ExitCode::cannot_create,
                      path + ": cannot create it: it exists (choose another name, or overwrite it with --force)");
    }
  }
}

void split(const SplitOptions& options) {
  if (!(options.fraction > 0 && options.fraction < 1)) refuse_command_line("--fraction: must be between 0 and 1");
  std::vector<InputFile> files =
      find_input_files({options.input}, options.rows.format(options.separator, options.column));
  report_notes(files, terminal_report());
  if (files.size() != 1) refuse_command_line("--input: give one file");
  files.front().columns.read.clear();  // all of them
  check_names(options, files.front().kind);
  if (files.front().kind == InputKind::tokens) {
    split_tokens_of(options);
  } else {
    split_text(files.front(), options);
  }
}

}  // namespace

Subcommand add_split(CLI::App& program) {
  CLI::App* app = program.add_subcommand("split", "divide the documents of a file into training and validation data");
  const auto options = std::make_shared<SplitOptions>();
  app->add_option(
         "--input", options->input,
         "input file: text, rows of JSON (both also .gz, .zst), a table (written as rows of JSON) or a token file")
      ->required();
  app->add_option("--train", options->train, "output file for training")->required();
  app->add_option("--validation", options->validation, "output file for validation")->required();
  app->add_option("--fraction", options->fraction, "fraction of the documents for validation")->capture_default_str();
  app->add_option("--seed", options->seed, "seed of the selection")->capture_default_str();
  app->add_option(
         "--document-separator", options->separator,
         "separator of documents: none (a file is one document), blank_line, or a text with \\n, \\t as in the deck")
      ->capture_default_str();
  app->add_option("--unpacked-limit", options->limit, "maximum unpacked bytes of a compressed file")
      ->capture_default_str();
  app->add_option("--text-column", options->column, "key of the text in rows")->capture_default_str();
  options->rows.add_to(*app);
  app->add_flag("--force", options->force, "overwrite the files");
  return {app, [options] { split(*options); }};
}

}  // namespace llmtrain
