// llmtool tokenizer train: trains byte-level BPE on files of text and writes tokenizer.json and tokenizer_config.json.

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/deck/suggestion.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/input_kind.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "parallel/local_communicator.hpp"
#include "tool/tool.hpp"
#include "tool/work_folder.hpp"

namespace llmtrain {
namespace {

struct TrainOptions {
  std::vector<std::string> inputs;
  std::string vocabulary_size;
  std::string min_frequency = "0";
  std::vector<std::string> special_tokens = {std::string(end_of_text_token)};
  bool no_special = false;
  std::string eos, bos;
  std::string split = "gpt2";
  std::string unit = "line";
  std::string ties = "ids";
  std::string separator = "none";
  std::string text_column = "text";
  RowOptions rows;
  std::string threads;
  std::string output;
  bool force = false;
};

constexpr std::array<std::string_view, 2> units = {"line", "document"};
constexpr std::array<std::string_view, 2> tie_rules = {"ids", "bytes"};

size_t choose(const char* option, const std::string& given, const std::array<std::string_view, 2>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (given == names[i]) return i;
  }
  refuse_command_line(
      fmt::format("{} must be one of {}, not {}{}", option, joined(names), given, did_you_mean(given, names)));
}

TokenizerTraining training_of(const TrainOptions& options) {
  TokenizerTraining training;
  training.vocabulary_size =
      parse_count_option("--vocab-size", options.vocabulary_size, between(1, static_cast<double>(max_bpe_tokens)));
  training.min_frequency = parse_count_option("--min-frequency", options.min_frequency, at_least(0));
  training.special_tokens = options.no_special ? std::vector<std::string>() : options.special_tokens;
  training.eos =
      options.eos.empty() && !training.special_tokens.empty() ? training.special_tokens.front() : options.eos;
  training.bos = options.bos;
  training.split = options.split;
  training.unit = static_cast<TrainingUnit>(choose("--unit", options.unit, units));
  training.ties = static_cast<BpeTrainingOptions::Ties>(choose("--ties", options.ties, tie_rules));
  return training;
}

/// Checks that the folder exists, is writable, and has no tokenizer that would be lost.
void prepare_folder(const TrainOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) fail_to_create(options.output, "cannot create it", error.value());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    if (options.force || !std::filesystem::exists(options.output + "/" + name, error)) continue;
    throw UserError(
        ExitCode::cannot_create,
        fmt::format("{}/{}: cannot create it: it exists (choose another folder, or overwrite it with --force)",
                    options.output, name));
  }
}

void train(const TrainOptions& options) {
  const TokenizerTraining training = training_of(options);
  if (!options.threads.empty()) {
    const int64_t threads = parse_count_option("--threads", options.threads, between(1, 256));
    setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  }
  prepare_folder(options);
  const auto alone = make_local_communicator();
  const ProgressReport report = terminal_report();
  std::vector<InputFile> files =
      find_input_files(options.inputs, options.rows.format(options.separator, options.text_column));
  report_notes(files, report);
  const WorkFolder folder(options.output + "/text");
  folder.unpack(files, *alone, report);
  const SourceScan scan = scan_sources(files, *alone, percent_report(report, "reading"));
  const TrainedTokenizer trained = train_tokenizer(files, scan, training, *alone, report);
  write_tokenizer_files(trained, options.output);
  std::cout << fmt::format("{}: {}\n", options.output, describe(trained, training));
}

}  // namespace

Subcommand add_tokenizer_train(CLI::App& tokenizer) {
  CLI::App* app = tokenizer.add_subcommand("train", "train a byte-level BPE tokenizer on text");
  const auto options = std::make_shared<TrainOptions>();
  app->add_option("--input", options->inputs, "input files or globs: UTF-8 text or rows of JSON, also as .gz and .zst")
      ->required();
  app->add_option("--vocab-size", options->vocabulary_size,
                  "number of tokens, with the 256 bytes and the special tokens")
      ->required();
  app->add_option("--output", options->output, "output folder for tokenizer.json and tokenizer_config.json")
      ->required();
  app->add_option("--min-frequency", options->min_frequency, "minimum number of occurrences of a pair that is merged")
      ->capture_default_str();
  app->add_option("--special", options->special_tokens, "special tokens, which get the first ids")
      ->capture_default_str();
  app->add_flag("--no-special", options->no_special, "use no special token");
  app->add_option("--eos", options->eos, "special token that ends a text; default: the first one");
  app->add_option("--bos", options->bos, "special token that begins a text; default: none");
  app->add_option("--split", options->split, "pattern that splits text into words: " + joined(trainable_splits()))
      ->capture_default_str();
  app->add_option(
         "--unit", options->unit,
         "line: split every line (with its end) separately, as the tokenizers package does; document: split a document "
         "as a whole, so that tokens can contain several line ends")
      ->capture_default_str();
  app->add_option("--document-separator", options->separator,
                  "separator of documents: none (a file is one document), blank_line, or a text with \\n, \\t as in "
                  "the deck; it is not trained on")
      ->capture_default_str();
  app->add_option("--text-column", options->text_column, "column of the text in rows")->capture_default_str();
  options->rows.add_to(*app);
  app->add_option("--ties", options->ties,
                  "choice among equally frequent pairs: ids, the smallest ids, as the tokenizers package does; "
                  "bytes, the greatest byte strings")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "number of threads; default: OMP_NUM_THREADS, otherwise all cores");
  app->add_flag("--force", options->force, "overwrite the files");
  return {app, [options] { train(*options); }};
}

}  // namespace llmtrain
