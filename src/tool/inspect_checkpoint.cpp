#include <fmt/format.h>

#include <string_view>

#include "checkpoint/checkpoint_reader.hpp"
#include "core/files/json_reader.hpp"
#include "tool/inspect.hpp"

namespace llmtrain {
void inspect_checkpoint(const std::string& path) {
  const Manifest manifest = read_manifest(path);
  int64_t bytes = 0, parameters = 0;
  for (const CheckpointFile& file : manifest.all_files()) bytes += file.bytes;
  for (const TensorSchema& tensor : manifest.schema.tensors) parameters += tensor.elements();
  inspect_line("checkpoint", path);
  inspect_line("step", std::to_string(manifest.step));
  inspect_line("written by", printable(manifest.program));
  inspect_line("parameters", fmt::format("{} in {} tensors, {} units; fp32 master, m, v", parameters,
                                         manifest.schema.tensors.size(), manifest.schema.units.size()));
  inspect_line("files", fmt::format("{} shards in {} files, {} bytes in all", manifest.shards.size(),
                                    count_files(manifest.shards), bytes));
  inspect_line("ledger", fmt::format("{} bytes, hash {}", manifest.ledger_bytes, hex(manifest.ledger_hash)));
  if (!manifest.run.parameters.empty()) inspect_line("parameter hash", printable(manifest.run.parameters));
  if (!manifest.run.attention.empty()) inspect_line("attention", printable(manifest.run.attention));
  if (!manifest.run.products.empty()) inspect_line("products", printable(manifest.run.products));
  for (const auto& [name, count] : manifest.run.counters) inspect_line(printable(name), std::to_string(count));
  for (const auto& [name, value] : manifest.run.values) inspect_line(printable(name), fmt::format("{}", value));
  for (const auto& [first, last] : manifest.run.skipped)
    inspect_line("skipped data", fmt::format("of steps {} to {}", first, last));
  for (const TensorSchema& tensor : manifest.schema.tensors) {
    const std::string shape =
        tensor.columns == 0 ? fmt::format("[{}]", tensor.rows) : fmt::format("[{}, {}]", tensor.rows, tensor.columns);
    inspect_line("tensor",
                 fmt::format("{} {}{}", printable(tensor.name), shape, tensor.transposed ? ", transposed" : ""));
  }
}

}  // namespace llmtrain
