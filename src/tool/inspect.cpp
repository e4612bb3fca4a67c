// llmtool inspect: shows the content of a file.

#include "tool/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.hpp"
#include "core/progress.hpp"
#include "data/files/token_file.hpp"
#include "text/tokenizer.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece_tokens = int64_t{1} << 20;
constexpr int64_t shown_tokens = 60;

void print_attributes(const TokenFileInfo& info) {
  inspect_line("token file", info.path);
  inspect_line("tokens", std::to_string(info.tokens));
  inspect_line("documents", std::to_string(info.documents));
  inspect_line("vocabulary size", std::to_string(info.vocabulary_size));
  inspect_line("eos id", info.eos_id < 0 ? "none" : std::to_string(info.eos_id));
  inspect_line("tokenizer",
               info.tokenizer.empty() ? "none, token ids only" : make_tokenizer_from(info.tokenizer)->kind());
  if (!info.tokenizer_hash.empty()) inspect_line("tokenizer hash", info.tokenizer_hash);
  if (info.bytes > 0) inspect_line("bytes of text", std::to_string(info.bytes));
  if (info.characters > 0) inspect_line("characters", std::to_string(info.characters));
  if (info.skipped_documents > 0) inspect_line("empty documents", fmt::format("{}, skipped", info.skipped_documents));
  if (info.group > 1) inspect_line("pairs", std::to_string(info.documents / info.group));
  if (!info.column.empty()) inspect_line("values", fmt::format("a {} of each document", info.column));
  if (!info.command.empty()) inspect_line("command", info.command);
  for (const std::string& source : info.sources) inspect_line("source", source);
}

void print_lengths(const TokenFile& file) {
  const std::span<const uint64_t> offsets = file.documents();
  std::vector<uint64_t> lengths;
  for (size_t d = 1; d < offsets.size(); ++d) lengths.push_back(offsets[d] - offsets[d - 1]);
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&](double share) {
    return lengths[static_cast<size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  inspect_line(
      "document lengths",
      fmt::format("{} shortest, {} median, {:.1f} mean, {} at 95 %, {} longest", lengths.front(), at(0.5),
                  static_cast<double>(file.tokens()) / static_cast<double>(lengths.size()), at(0.95), lengths.back()));
}

/// Reads everything, so that ids outside the vocabulary are found here and not in a training job.
void print_contents(const TokenFile& file) {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  int32_t highest = 0;
  int64_t trained = 0;
  Progress progress("checking tokens", std::max<int64_t>(file.tokens(), 1));
  for (int64_t begin = 0; begin < file.tokens(); begin += piece_tokens) {
    const int64_t n = std::min(piece_tokens, file.tokens() - begin);
    ids.resize(static_cast<size_t>(n));
    mask.resize(static_cast<size_t>(n));
    file.read(begin, n, ids.data());
    file.read_mask(begin, n, mask.data());
    highest = std::max(highest, *std::max_element(ids.begin(), ids.end()));
    trained += std::count(mask.begin(), mask.end(), uint8_t{1});
    progress.add(n);
  }
  inspect_line("highest id", std::to_string(highest));
  inspect_line("mask",
               file.info().has_mask ? fmt::format("{} of {} tokens are targets", trained, file.tokens()) : "none");
}

void print_beginning(const TokenFile& file) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(shown_tokens, file.tokens())));
  file.read(0, static_cast<int64_t>(ids.size()), ids.data());
  inspect_line("begins with ids", fmt::format("{}", fmt::join(ids, " ")));
  if (file.info().tokenizer.empty()) return;
  const std::string text = make_tokenizer_from(file.info().tokenizer)->decode(ids);
  inspect_line("begins with", nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void inspect(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    inspect_checkpoint(path);
    return;
  }
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".safetensors") {
    inspect_safetensors(path);
    return;
  }
  if (ending != ".h5" && ending != ".hdf5" && std::filesystem::exists(path, ignored)) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: {} files cannot be inspected, only token files and metrics (.h5), .safetensors and "
                    "checkpoints",
                    path, ending.empty() ? "such" : ending));
  }
  if (is_metrics_file(path)) {
    inspect_metrics(path);
    return;
  }
  const auto file = open_token_file(path);
  print_attributes(file->info());
  print_lengths(*file);
  print_contents(*file);
  print_beginning(*file);
}

}  // namespace

void inspect_line(std::string_view name, const std::string& value) {
  std::cout << without_controls(fmt::format("{:<18} {}\n", name, value));
}

Subcommand add_inspect(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "inspect",
      "show the content of a token file (and check all of it), a run's metrics.h5, safetensors or a checkpoint");
  const auto path = std::make_shared<std::string>();
  app->add_option("file", *path, "token file or metrics (.h5), .safetensors, or folder of a checkpoint")->required();
  return {app, [path] { inspect(*path); }};
}

}  // namespace llmtrain
