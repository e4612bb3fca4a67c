// llmtool import: converts models and token ids of other programs.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/foreign_tokens.hpp"
#include "data/files/token_file.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "hf/import_folder.hpp"
#include "hf/weights/weight_index.hpp"
#include "text/load_tokenizer.hpp"
#include "tool/loaded_model.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr std::array<std::string_view, 6> formats = {"auto", "llama2c", "gpt-json", "nanogpt", "llm.c", "megatron"};
enum class Format : uint8_t { automatic, llama2c, gpt_json, nanogpt, llmc, megatron };

struct Options {
  std::vector<std::string> inputs;
  std::string format = "auto";
  std::string tokenizer;
  std::string eos_token;
  std::string output;
  std::string dtype = "fp32";
  int64_t vocabulary_size = 0;
  int64_t eos_id = -1;
  bool force = false;
};

/// Detects PyTorch files: a zip archive, or before 1.6 a bare pickle.
void refuse_pickle(const std::string& path) {
  std::array<char, 4> first{};
  FileHandle::open_to_read(path).read_some(0, 4, first.data());
  const std::string_view bytes(first.data(), 4);
  if (bytes != std::string_view("PK\x03\x04", 4) && !bytes.starts_with("\x80\x02")) return;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: a PyTorch file. Reading such a file runs code in it, so it is not read. "
                              "If you trust it and its config.json is in the same folder, convert it once:\n  {}",
                              path, pickle_way_out(folder.empty() ? "." : folder)));
}

Format choose_format(const Options& o) {
  const std::string& input = o.inputs.front();
  const auto named = static_cast<Format>(std::ranges::find(formats, o.format) - formats.begin());
  if (named != Format::automatic) return named;
  ForeignTokens tokens{};
  if (is_foreign_tokens(input, tokens)) return tokens == ForeignTokens::llmc ? Format::llmc : Format::megatron;
  switch (find_model_format(input)) {
    case ModelFormat::gpt_json:
      return Format::gpt_json;
    case ModelFormat::llama2c:
      return Format::llama2c;
    case ModelFormat::none:
      break;
  }
  refuse_pickle(input);
  refuse_command_line(fmt::format("{}: its format cannot be detected; give --format ({})", input,
                                  joined(std::span(formats).subspan(1))));
}

std::unique_ptr<Tokenizer> find_tokenizer(const Options& o) {
  return o.tokenizer.empty() ? nullptr : open_tokenizer(o.tokenizer, {o.eos_token});
}

void import_model(Format format, const Options& o) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(o);
  ImportOptions options;
  options.output = o.output;
  options.overwrite = o.force;
  options.type = parse_weight_type_option(o.dtype);
  if (tokenizer) {
    options.check_rows = [&](int64_t rows) { warn_of_missing_rows(*tokenizer, rows, o.tokenizer); };
    options.save_tokenizer = [&](const std::string& folder) { save_tokenizer(*tokenizer, folder); };
  }
  if (format == Format::llama2c) {
    import_llama2c(o.inputs.front(), options);
  } else {
    print_warnings(import_gpt_json(o.inputs.front(), options));
  }
  std::cout << o.output << '\n';
}

void import_ids(Format format, const Options& o) {
  check_token_file_output(o.output, o.force);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(o);
  if (tokenizer) require_eos(*tokenizer, o.tokenizer);
  TokenImport request;
  request.inputs = o.inputs;
  request.output = o.output;
  request.tokenizer = tokenizer.get();
  request.vocabulary_size = o.vocabulary_size;
  request.eos_id = o.eos_id;
  request.command = fmt::format("llmtool import {} --format {} --output {}", joined(o.inputs, " "),
                                formats[static_cast<size_t>(format)], o.output);
  const ForeignTokens kind = format == Format::nanogpt ? ForeignTokens::nanogpt
                             : format == Format::llmc  ? ForeignTokens::llmc
                                                       : ForeignTokens::megatron;
  import_tokens(kind, request, [](const std::string& line) { std::cerr << without_controls(line) << '\n'; });
  const TokenFileInfo info = open_token_file(o.output)->info();
  std::cout << fmt::format("{}: {} tokens in {} documents, vocabulary {}\n", o.output, info.tokens, info.documents,
                           info.vocabulary_size);
  if (info.skipped_documents > 0) {
    std::cout << fmt::format("{} empty documents were skipped\n", info.skipped_documents);
  }
}

void import_file(const Options& o) {
  const Format format = choose_format(o);
  const bool model = format == Format::llama2c || format == Format::gpt_json;
  if (o.inputs.size() > 1 && (model || format == Format::megatron)) {
    refuse_command_line("input: give one file; only token files of nanoGPT and llm.c can be several");
  }
  if (!o.tokenizer.empty() && (o.vocabulary_size > 0 || o.eos_id >= 0)) {
    refuse_command_line(
        "--tokenizer determines the vocabulary and the end of a text; remove --vocab-size and --eos-id");
  }
  if (model && (o.vocabulary_size > 0 || o.eos_id >= 0)) {
    refuse_command_line("--vocab-size and --eos-id are for files of token ids");
  }
  return model ? import_model(format, o) : import_ids(format, o);
}

}  // namespace

Subcommand add_import(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "import", "convert another program's model to a Hugging Face folder, or its token ids to a token file (.h5)");
  const auto o = std::make_shared<Options>();
  app->add_option(
         "input", o->inputs,
         "input file; for Megatron its .bin or .idx; for nanoGPT and llm.c also several, in order: a document can "
         "continue in the next one")
      ->required();
  app->add_option("--output", o->output, "output folder for a model, or output file ending in .h5 for token ids")
      ->required();
  app->add_option("--format", o->format,
                  "llama2c (.bin, version 0), gpt-json (minGPT's or nanoGPT's state), nanogpt (uint16 ids), llm.c, "
                  "megatron (.bin and .idx); auto detects the format")
      ->check(CLI::IsMember(std::vector<std::string>(formats.begin(), formats.end())))
      ->capture_default_str();
  app->add_option("--tokenizer", o->tokenizer,
                  "file or folder of its tokenizer; it is copied into the folder of a model");
  app->add_option("--eos-token", o->eos_token, "token that ends a document, if no file of the tokenizer names it");
  app->add_option("--vocab-size", o->vocabulary_size, "vocabulary size of token ids without a tokenizer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  app->add_option("--eos-id", o->eos_id, "id that ends a document (in llm.c: begins it), without a tokenizer")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  app->add_option("--dtype", o->dtype, "type of a model's weights: fp32, bf16 or fp16")->capture_default_str();
  app->add_flag("--force", o->force, "overwrite the output");
  return {app, [o] { import_file(*o); }};
}

}  // namespace llmtrain
