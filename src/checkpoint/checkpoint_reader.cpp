#include "checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/shard_file.hpp"
#include "core/critic_names.hpp"
#include "core/message.hpp"
#include "core/parallel_for.hpp"
#include "core/progress.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

constexpr const char* while_verifying = "while a checkpoint was verified";
constexpr int64_t pieces_before_pause = 16;  // per thread

int64_t pieces_of(const CheckpointFile& file) { return (file.bytes + hash_piece - 1) / hash_piece; }

void check_size(const FileHandle& file, int64_t expected) {
  if (const int64_t found = file.size(); found != expected) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {} bytes instead of {}", file.path(), found, expected));
  }
}

/// Returns the first damaged tensor of a shard; empty if there is none.
std::string find_damage(const FileHandle& file, const Manifest& manifest, int64_t shard, const Pause& pause) {
  ShardIndex index;
  try {
    index = read_shard_index(file, manifest, shard);
  } catch (const UserError& error) {
    return fmt::format("its index is damaged ({})", error.what());
  }
  std::vector<char> buffer(static_cast<size_t>(hash_piece));
  for (const IndexEntry& entry : index.entries) {
    StreamHash hash;
    const int64_t bytes = bytes_of(manifest.schema, entry.range);
    for (int64_t begin = 0; begin < bytes;) {
      const int64_t count = std::min(hash_piece, bytes - begin);
      file.read(entry.offset + begin, count, buffer.data());
      hash.update(buffer.data(), static_cast<size_t>(count));
      begin += count;
      pause();
    }
    if (hash.digest() == entry.hash) continue;
    return fmt::format("{} of tensor {}, elements {} to {} of its unit: hash {} instead of {}",
                       manifest.schema.states[entry.range.plane].name,
                       manifest.schema.tensors[static_cast<size_t>(entry.range.tensor)].name, entry.range.begin,
                       entry.range.end, hex(hash.digest()), hex(entry.hash));
  }
  return {};
}

/// This rank's share of the pieces of all files, and the problems found in them.
class PieceReader {
 public:
  PieceReader(const std::string& path, const std::vector<CheckpointFile>& files, int64_t begin, int64_t end,
              int threads)
      : path_(path), files_(files), begin_(begin), end_(end), threads_(threads) {}

  std::vector<Digest> digests;
  std::string problems;  ///< one per line

  void read(const Pause& pause) {
    digests.resize(static_cast<size_t>(end_ - begin_));
    Progress progress("verifying the checkpoint", end_ - begin_);
    int64_t first = 0;
    for (const CheckpointFile& file : files_) {
      const int64_t last = first + pieces_of(file);
      const int64_t from = std::max(first, begin_), to = std::min(last, end_);
      if (from < to) read_file(file, first, from, to, progress, pause);
      first = last;
    }
  }

 private:
  void read_file(const CheckpointFile& file, int64_t first, int64_t from, int64_t to, Progress& progress,
                 const Pause& pause) {
    try {
      const FileHandle handle = FolderHandle::open(path_, FolderHandle::Links::refused).open_to_read(file.name);
      check_size(handle, file.bytes);
      for (const int64_t batch = pieces_before_pause * threads_; from < to; from += batch) {
        parallel_for(static_cast<size_t>(std::min(batch, to - from)), threads_, [&](size_t i) {
          thread_local std::vector<char> buffer(static_cast<size_t>(hash_piece));
          const int64_t piece = from + static_cast<int64_t>(i), offset = (piece - first) * hash_piece;
          const int64_t count = std::min(hash_piece, file.bytes - offset);
          handle.read(offset, count, buffer.data());
          digests[static_cast<size_t>(piece - begin_)] = digest_of(buffer.data(), static_cast<size_t>(count));
          progress.add();
        });
        pause();
      }
    } catch (const UserError& error) {
      problems += std::string(error.what()) + "\n";
    }
  }

  const std::string& path_;
  const std::vector<CheckpointFile>& files_;
  int64_t begin_, end_;
  int threads_;
};

std::string compare_hashes(const std::string& path, const Manifest& manifest, const std::vector<CheckpointFile>& files,
                           const std::vector<Digest>& digests, const Pause& pause) {
  std::string problems;
  size_t first = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const auto count = static_cast<size_t>(pieces_of(files[f]));
    const Digest found = combine(std::span(digests).subspan(first, count));
    first += count;
    if (found == files[f].hash) continue;
    std::string where;
    try {
      const FileHandle handle = FolderHandle::open(path, FolderHandle::Links::refused).open_to_read(files[f].name);
      for (size_t shard = 0; shard < manifest.shards.size() && where.empty(); ++shard) {
        if (manifest.shards[shard].file.name != files[f].name) continue;
        const std::string damage = find_damage(handle, manifest, static_cast<int64_t>(shard), pause);
        if (!damage.empty()) where = "; " + damage;
      }
      if (where.empty() && files[f].name.starts_with(shard_prefix)) where = "; in HDF5's data between the tensors";
    } catch (const UserError& error) {
      where = fmt::format("; {}", error.what());
    }
    problems += fmt::format("{}/{}: its hash is {} instead of {}{}\n", path, files[f].name, hex(found),
                            hex(files[f].hash), where);
  }
  return problems;
}

/// Merges the lines of all ranks, each once.
std::string join_problems(const std::vector<std::string>& texts) {
  std::vector<std::string> lines;
  for (const std::string& text : texts) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      lines.push_back(text.substr(begin, end - begin));
      begin = end == std::string::npos ? text.size() : end + 1;
    }
  }
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

/// Collective: returns the problems of the files, or an empty text.
std::string check_files(const std::string& path, const Manifest& manifest, Communicator& communicator) {
  const std::vector<CheckpointFile> files = manifest.all_files();
  int64_t pieces = 0;
  for (const CheckpointFile& file : files) pieces += pieces_of(file);
  const int64_t each = pieces / communicator.size(), rest = pieces % communicator.size();
  const auto border = [&](int64_t r) { return each * r + rest * r / communicator.size(); };
  PieceReader reader(path, files, border(communicator.rank()), border(communicator.rank() + 1),
                     worker_threads(communicator));
  run_cancellable(communicator, while_verifying, [&](const Pause& pause) { reader.read(pause); });
  std::string problems = join_problems(communicator.gather(reader.problems));
  communicator.broadcast(problems);
  if (!problems.empty()) return problems;
  Message mine;
  mine.put(reader.digests);
  std::vector<Digest> all;
  for (const std::string& range : communicator.gather(mine.bytes())) Message(range).take(all);
  run_cancellable(communicator, while_verifying, [&](const Pause& pause) {
    if (communicator.rank() == 0) problems = compare_hashes(path, manifest, files, all, pause);
  });
  communicator.broadcast(problems);
  return join_problems({problems});
}

/// Reads the manifest of a folder and checks it against the step in the folder's name, if there is one.
Manifest parse_manifest_of(const std::string& path, const std::string& text) {
  Manifest manifest = parse_manifest(text, path + "/" + manifest_name);
  const auto step = step_of(std::filesystem::path(path).filename().string());
  if (step && *step != manifest.step) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: its manifest is of step {}", path, manifest.step));
  }
  return manifest;
}

/// Returns rank 0's manifest text, or throws its error, on all ranks.
Manifest read_manifest_together(const std::string& path, Communicator& communicator) {
  std::string text;
  on_root(communicator, [&] {
    text = FolderHandle::open(path, FolderHandle::Links::refused)
               .open_to_read(manifest_name)
               .read_text(max_manifest_bytes);
    parse_manifest_of(path, text);
  });
  communicator.broadcast(text);
  return parse_manifest_of(path, text);
}

/// Place of a checkpoint's tensor in the target.
struct Place {
  int64_t unit = -1;
  int64_t shift = 0;                 ///< from elements of the checkpoint's unit to those of the target's
  std::vector<ShardBorders> needed;  ///< elements of the checkpoint's unit that the target needs
};

/// The checkpoint's tensors without those of a critic, unless they are wanted.
Schema without_critic(Schema stored, const Schema& wanted) {
  const auto of_critic = [](const auto& part) { return part.name.starts_with(critic_prefix); };
  if (std::ranges::any_of(wanted.units, of_critic)) return stored;
  std::erase_if(stored.units, of_critic);  // the last ones
  std::erase_if(stored.tensors, of_critic);
  return stored;
}

/// By tensor of the checkpoint. The target's units may be others, if it says so: then the padding after each tensor is
/// not copied.
std::vector<Place> find_places(const Schema& stored, const Schema& wanted, const StateTarget& target) {
  const bool same = stored == wanted;
  std::map<std::string_view, const TensorSchema*> by_name;
  for (const TensorSchema& tensor : wanted.tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<Place> places;
  for (const TensorSchema& tensor : stored.tensors) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) {  // of a critic
      places.push_back({});
      continue;
    }
    const TensorSchema& there = *found->second;
    const int64_t last = same ? std::numeric_limits<int64_t>::max() : tensor.offset + tensor.elements();
    Place& place = places.emplace_back(Place{there.unit, there.offset - tensor.offset, {}});
    for (const ShardBorders& part : target.wanted(there.unit)) {
      const int64_t begin = std::max(part.begin - place.shift, tensor.offset);
      const int64_t end = std::min(part.end - place.shift, last);
      if (begin < end) place.needed.push_back({begin, end});
    }
  }
  return places;
}

/// Describes why the target cannot take the checkpoint's tensors; empty if it can.
std::string obstacle(const Manifest& manifest, const StateTarget& target, const Schema& wanted) {
  if (!target.may_lack()) return difference(manifest.schema, wanted);
  const Schema stored = without_critic(manifest.schema, wanted);
  if (!manifest.frozen) return difference(stored, wanted);
  Schema present;
  present.units = stored.units;
  std::set<std::string_view> names;
  for (const TensorSchema& tensor : stored.tensors) names.insert(tensor.name);
  for (const TensorSchema& tensor : wanted.tensors) {
    if (names.contains(tensor.name)) present.tensors.push_back(tensor);
  }
  return tensor_difference(stored, present);
}

/// Returns the schema that the target takes; its optimizer does not matter if it takes the masters only.
Schema wanted_schema(const Manifest& manifest, const StateTarget& target) {
  Schema wanted = target.schema();
  if (target.wants(master_plane + 1)) return wanted;
  wanted.states = manifest.schema.states;
  for (size_t t = 0; t < std::min(wanted.tensors.size(), manifest.schema.tensors.size()); ++t) {
    wanted.tensors[t].per_chunk = manifest.schema.tensors[t].per_chunk;
  }
  return wanted;
}

/// Elements of a part that the target needs, in the checkpoint's unit: one range for each of its segments.
std::vector<ShardBorders> needed_parts(const StateRange& range, const Place& place) {
  std::vector<ShardBorders> parts;
  for (const ShardBorders& needed : place.needed) {
    const ShardBorders part{std::max(range.begin, needed.begin), std::min(range.end, needed.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

/// Copies elements of one part that the target needs.
void load_range(const FileHandle& file, const StatePlane& plane, const IndexEntry& entry, const ShardBorders& needed,
                const Place& place, StateTarget& target, std::span<float> buffer, const Pause& pause) {
  const auto [begin, end] = needed;
  const int64_t at_once = plane.elements_in(static_cast<int64_t>(buffer.size_bytes()));
  LLMTRAIN_CHECK(at_once > 0, "the buffer of a checkpoint must hold at least one chunk");
  StreamHash hash;
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(at_once, end - at);
    const int64_t bytes = plane.bytes(count);
    file.read(entry.offset + plane.bytes(at - entry.range.begin), bytes, buffer.data());
    hash.update(buffer.data(), static_cast<size_t>(bytes));
    target.write(place.unit, entry.range.plane, at + place.shift, count, buffer.data());
    at += count;
    pause();
  }
  // It was verified before; parts that are read whole are compared again, since the disk can fail in between.
  if (begin == entry.range.begin && end == entry.range.end && hash.digest() != entry.hash) {
    throw UserError(ExitCode::io, file.path() + ": the file has changed during reading");
  }
}

/// Shards that have elements which the target needs, in order.
std::vector<int64_t> needed_shards(const Schema& schema, const std::vector<Place>& places, int64_t shards) {
  std::vector<uint8_t> needed(static_cast<size_t>(shards));
  for (size_t t = 0; t < places.size(); ++t) {
    const UnitSchema& unit = schema.units[static_cast<size_t>(schema.tensors[t].unit)];
    for (const ShardBorders& part : places[t].needed) mark_shards(unit, part, needed);
  }
  std::vector<int64_t> found;
  for (int64_t shard = 0; shard < shards; ++shard) {
    if (needed[static_cast<size_t>(shard)] != 0) found.push_back(shard);
  }
  return found;
}

}  // namespace

Manifest verify_checkpoint(const std::string& path, Communicator& communicator) {
  Manifest manifest = read_manifest_together(path, communicator);
  const std::string problems = check_files(path, manifest, communicator);
  if (!problems.empty()) throw UserError(ExitCode::bad_content, problems);
  return manifest;
}

Manifest read_manifest(const std::string& path) {
  const FolderHandle folder = FolderHandle::open(path, FolderHandle::Links::refused);
  const std::string text = folder.open_to_read(manifest_name).read_text(max_manifest_bytes);
  Manifest manifest = parse_manifest_of(path, text);
  for (const CheckpointFile& file : manifest.all_files()) check_size(folder.open_to_read(file.name), file.bytes);
  return manifest;
}

std::optional<FoundCheckpoint> find_checkpoint(const std::string& folder, Communicator& communicator) {
  std::vector<int64_t> steps;
  on_root(communicator, [&] { steps = published_steps(folder); });
  auto count = static_cast<int64_t>(steps.size());
  communicator.broadcast(&count, sizeof(count));
  steps.resize(static_cast<size_t>(count));
  communicator.broadcast(steps.data(), count * static_cast<int64_t>(sizeof(int64_t)));
  FoundCheckpoint found;
  for (const int64_t step : steps) {
    found.path = folder + "/" + checkpoint_name(step);
    try {
      found.manifest = verify_checkpoint(found.path, communicator);
      return found;
    } catch (const UserError& error) {  // the same on all ranks
      if (error.code() == ExitCode::stopped) throw;
      found.refused.push_back({step, found.path, error.what()});
    }
  }
  if (found.refused.empty()) return std::nullopt;
  std::string reasons;
  for (const RefusedCheckpoint& refused : found.refused) reasons += "\n" + refused.reason;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: no intact checkpoint was found. Nothing was deleted, and the run does not "
                              "restart by itself; restore a checkpoint, or use another run.name{}",
                              folder, reasons));
}

void load_checkpoint(const std::string& path, const Manifest& manifest, StateTarget& target, std::span<float> buffer,
                     Communicator& communicator) {
  LLMTRAIN_CHECK(!buffer.empty(), "a checkpoint needs a buffer");
  run_cancellable(communicator, "while a checkpoint was read", [&](const Pause& pause) {
    const Schema wanted = wanted_schema(manifest, target);
    if (const std::string what = obstacle(manifest, target, wanted); !what.empty()) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: not a checkpoint of this model: {}", path, what));
    }
    const FolderHandle folder = FolderHandle::open(path, FolderHandle::Links::refused);
    const auto shards = static_cast<int64_t>(manifest.shards.size());
    const std::vector<Place> places = find_places(manifest.schema, wanted, target);
    Progress progress("loading the checkpoint", shards);
    for (const int64_t shard : needed_shards(manifest.schema, places, shards)) {
      progress.set(shard);
      const CheckpointFile& listed = manifest.shards[static_cast<size_t>(shard)].file;
      const FileHandle file = folder.open_to_read(listed.name);
      check_size(file, listed.bytes);
      for (const IndexEntry& entry : read_shard_index(file, manifest, shard).entries) {
        if (!target.wants(entry.range.plane)) continue;
        const Place& place = places[static_cast<size_t>(entry.range.tensor)];
        for (const ShardBorders& needed : needed_parts(entry.range, place)) {
          load_range(file, plane_of(manifest.schema, entry.range), entry, needed, place, target, buffer, pause);
        }
      }
    }
  });
  target.finish();
}

}  // namespace llmtrain
