// llmtool inspect: shows the content of a file.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/error.hpp"
#include "core/files/hdf5_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/progress.hpp"
#include "data/files/token_file.hpp"
#include "hf/weights/safetensors.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "text/tokenizer.hpp"
#include "tool/tool.hpp"

namespace llmtrain {

namespace {

/// Prints one line: "name value".
void inspect_line(std::string_view name, const std::string& value) {
  std::cout << without_controls(fmt::format("{:<18} {}\n", name, value));
}

constexpr std::array<const char*, 5> tables = {"train", "validation", "system", "ranks", "traffic"};

bool has_plain_link(hid_t file, const char* name) {
  H5L_info2_t info;
  return H5Lexists(file, name, H5P_DEFAULT) > 0 && H5Lget_info2(file, name, &info, H5P_DEFAULT) >= 0 &&
         info.type == H5L_TYPE_HARD;
}

/// Skips NaN, such as the loss of a step without a target.
double least_number(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::quiet_NaN();
  for (const double value : values) least = std::fmin(least, value);
  return least;
}

void print_table(const MetricsTable& table) {
  size_t width = 20;
  for (const MetricsTable::Column& column : table.columns) width = std::max(width, column.name.size());
  std::cout << fmt::format("/{}\n  {:<{}} {:>8} {:>14} {:>14} {:>14}  {}\n", table.name, "", width, "rows", "first",
                           "last", "least", "units");
  for (const MetricsTable::Column& column : table.columns) {
    const std::vector<double>& values = column.values;
    const auto text = [&](auto pick) { return values.empty() ? std::string("-") : fmt::format("{:.6g}", pick()); };
    std::cout << without_controls(fmt::format("  {:<{}} {:>8} {:>14} {:>14} {:>14}  {}\n", column.name, width,
                                              values.size(), text([&] { return values.front(); }),
                                              text([&] { return values.back(); }),
                                              text([&] { return least_number(values); }), column.units));
  }
}

/// Returns true if the file is HDF5 with a run's metrics rather than tokens. Main thread only.
bool is_metrics_file(const std::string& path) {
  const Hdf5Silence silence;
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  return file.valid() && !has_plain_link(file.get(), "tokens") && has_plain_link(file.get(), tables.front());
}

/// Prints rows, first, last and smallest value and units of every column of a metrics.h5.
void inspect_metrics(const std::string& path) {
  std::cout << "metrics            " << without_controls(path) << "\n";
  for (const char* name : tables) {
    const MetricsTable table = read_metrics_table(path, name);
    if (!table.columns.empty()) print_table(table);
  }
}

void inspect_safetensors(const std::string& path) {
  const FileHandle file = FileHandle::open_to_read(path);
  const SafetensorsHeader header = read_safetensors_header(file);
  int64_t elements = 0;
  for (const StoredTensor& tensor : header.tensors) elements += tensor.numel();
  inspect_line("safetensors", path);
  inspect_line("bytes", std::to_string(file.size()));
  inspect_line("elements", fmt::format("{} in {} tensors", elements, header.tensors.size()));
  for (const auto& [key, value] : header.metadata) {
    inspect_line("metadata", fmt::format("{}: {}", printable(key), printable(value)));
  }
  for (const StoredTensor& tensor : header.tensors) {
    inspect_line("tensor",
                 fmt::format("{} {} {}", printable(tensor.name), name_of(tensor.type), shape_text(tensor.shape)));
  }
}

/// Prints the manifest of a checkpoint; checks sizes of files, but not contents (llmtool verify does).
void inspect_checkpoint(const std::string& path) {
  const Manifest manifest = read_manifest(path);
  int64_t bytes = 0, parameters = 0;
  for (const CheckpointFile& file : manifest.all_files()) bytes += file.bytes;
  for (const TensorSchema& tensor : manifest.schema.tensors) parameters += tensor.elements();
  const auto tensors = tensors_in_blocks(manifest.schema);
  inspect_line("checkpoint", path);
  inspect_line("step", std::to_string(manifest.step));
  inspect_line("written by", printable(manifest.program));
  inspect_line("parameters", fmt::format("{} in {} tensors, {} units; fp32 master, m, v", parameters, tensors.size(),
                                         manifest.schema.units.size()));
  inspect_line("files", fmt::format("{} shards in {} files, {} bytes in all", manifest.shards.size(),
                                    count_files(manifest.shards), bytes));
  inspect_line("ledger", fmt::format("{} bytes, hash {}", manifest.ledger_bytes, hex(manifest.ledger_hash)));
  if (manifest.schema.tensor_blocks > 1) {
    inspect_line("tensor blocks",
                 fmt::format("{}, written by {} rank{} that shared matrices", manifest.schema.tensor_blocks,
                             manifest.tensor_ranks, manifest.tensor_ranks == 1 ? "" : "s"));
  }
  if (manifest.schema.expert_blocks > 1) {
    inspect_line("expert blocks",
                 fmt::format("{}, written by {} rank{} that shared experts", manifest.schema.expert_blocks,
                             manifest.expert_ranks, manifest.expert_ranks == 1 ? "" : "s"));
  }
  if (!manifest.run.parameters.empty()) inspect_line("parameter hash", printable(manifest.run.parameters));
  if (!manifest.run.attention.empty()) inspect_line("attention", printable(manifest.run.attention));
  if (!manifest.run.products.empty()) inspect_line("products", printable(manifest.run.products));
  for (const auto& [name, count] : manifest.run.counters) inspect_line(printable(name), std::to_string(count));
  for (const auto& [name, value] : manifest.run.values) inspect_line(printable(name), fmt::format("{}", value));
  for (const auto& [first, last] : manifest.run.skipped)
    inspect_line("skipped data", fmt::format("of steps {} to {}", first, last));
  for (const auto& blocks : tensors) {
    const TensorSchema& tensor = *blocks.front();
    const TensorBlock whole = tensor.place();
    const std::string shape =
        tensor.columns == 0 ? fmt::format("[{}]", whole.rows) : fmt::format("[{}, {}]", whole.rows, whole.columns);
    inspect_line("tensor",
                 fmt::format("{} {}{}{}", printable(tensor.name), shape, tensor.transposed ? ", transposed" : "",
                             blocks.size() > 1 ? fmt::format(", in {} blocks", blocks.size()) : ""));
  }
}

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
  std::ranges::sort(lengths);
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
    highest = std::max(highest, *std::ranges::max_element(ids));
    trained += std::ranges::count(mask, uint8_t{1});
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

Subcommand add_inspect(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "inspect",
      "show the content of a token file (and check all of it), a run's metrics.h5, safetensors or a checkpoint");
  const auto path = std::make_shared<std::string>();
  app->add_option("file", *path, "token file or metrics (.h5), .safetensors, or folder of a checkpoint")->required();
  return {app, [path] { inspect(*path); }};
}

}  // namespace llmtrain
