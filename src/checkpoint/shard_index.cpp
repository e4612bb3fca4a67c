#include "checkpoint/shard_index.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/files/json_node.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_index_bytes = int64_t{256} << 20;

IndexEntry entry_from(const JsonNode& field, const StateRange& wanted, int64_t bytes, int64_t file_bytes) {
  if (field.array().size() != 6) field.refuse("six values are expected");
  const StateRange range{static_cast<size_t>(field.at(size_t{0}).count()), field.at(1).count(), field.at(2).count(),
                         field.at(3).count()};
  if (range != wanted) field.refuse("not the expected range");
  const int64_t offset = field.at(4).count(file_bytes);
  if (bytes > file_bytes - offset) field.refuse("the range extends beyond the end of the file");
  return {range, offset, digest_from(field.at(5))};
}

}  // namespace

std::string to_text(const ShardIndex& index) {
  std::string text =
      fmt::format("{{\"format\":\"llmtrain shard\",\"version\":{},\"step\":{},\"shard\":{},\"shards\":{},\"parts\":[",
                  checkpoint_version, index.step, index.shard, index.shards);
  const char* separator = "\n";
  for (const IndexEntry& entry : index.entries) {
    text += fmt::format("{}[{},{},{},{},{},\"{}\"]", separator, entry.range.plane, entry.range.tensor,
                        entry.range.begin, entry.range.end, entry.offset, hex(entry.hash));
    separator = ",\n";
  }
  return text + "]}\n";
}

ShardIndex parse_shard_index(std::string_view text, const Manifest& manifest, int64_t shard,
                             const std::string& source) {
  const nlohmann::json json = parse_json(text, source, {.bytes = max_index_bytes, .values = int64_t{1} << 24});
  const JsonNode field(json, source);
  field.check_keys({"format", "version", "step", "shard", "shards", "parts"});
  const ShardIndex head{field.at("step").count(), field.at("shard").count(), field.at("shards").count(), {}};
  const auto shards = static_cast<int64_t>(manifest.shards.size());
  if (field.at("format").text() != "llmtrain shard" || field.at("version").count() != checkpoint_version ||
      head.step != manifest.step || head.shard != shard || head.shards != shards) {
    field.refuse(fmt::format("not the index of shard {} of {} of step {}", shard, shards, manifest.step));
  }
  ShardIndex index = head;
  const std::vector<StateRange> wanted = ranges_of_shard(manifest.schema, shard, shards);
  const JsonNode ranges = field.at("parts").array();
  if (ranges.size() != wanted.size()) ranges.refuse(fmt::format("{} ranges are expected", wanted.size()));
  const int64_t file_bytes = manifest.shards[static_cast<size_t>(shard)].file.bytes;
  index.entries.reserve(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t bytes = bytes_of(manifest.schema, wanted[i]);
    index.entries.push_back(entry_from(ranges.at(i), wanted[i], bytes, file_bytes));
  }
  return index;
}

ShardIndex read_shard_index(const FileHandle& file, const Manifest& manifest, int64_t shard) {
  const CheckpointShard& entry = manifest.shards[static_cast<size_t>(shard)];
  if (entry.index_bytes > max_index_bytes) {
    throw UserError(ExitCode::bad_content, file.path() + ": its index is too large");
  }
  std::string text(static_cast<size_t>(entry.index_bytes), '\0');
  file.read(entry.index_offset, entry.index_bytes, text.data());
  return parse_shard_index(text, manifest, shard, file.path());
}

}  // namespace llmtrain
