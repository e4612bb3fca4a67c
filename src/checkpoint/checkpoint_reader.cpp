#include "checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/shard_file.hpp"
#include "core/critic_names.hpp"
#include "core/parallel_for.hpp"
#include "core/progress.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"

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
  std::ranges::sort(lines);
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

/// The checkpoint's tensors without those of a critic, unless they are wanted.
Schema without_critic(Schema stored, const Schema& wanted) {
  const auto of_critic = [](const auto& part) { return part.name.starts_with(critic_prefix); };
  if (std::ranges::any_of(wanted.units, of_critic)) return stored;
  std::erase_if(stored.units, of_critic);  // the last ones
  std::erase_if(stored.tensors, of_critic);
  return stored;
}

/// Elements [begin, end) of a checkpoint's unit, which the target has in a unit of its own, `shift` elements further.
struct Run {
  int64_t begin, end;
  int64_t unit, shift;
};

/// The target's elements of the checkpoint's tensors. Its units may be others, if it says so, and have other blocks of
/// the tensors.
class Places {
 public:
  Places(const Schema& stored, const Schema& wanted, const StateTarget& target)
      : tensors_(stored.tensors), same_(stored == wanted), matches_(stored.tensors.size()) {
    std::map<std::string_view, std::vector<const TensorSchema*>> by_name;
    for (const TensorSchema& tensor : wanted.tensors) by_name[tensor.name].push_back(&tensor);
    for (int64_t unit = 0; unit < std::ssize(wanted.units); ++unit) wanted_.push_back(target.wanted(unit));
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const auto found = by_name.find(tensors_[t].name);
      if (found == by_name.end()) continue;  // of a critic
      const auto equal = std::ranges::find_if(
          found->second, [&](const TensorSchema* there) { return same_place(tensors_[t], *there); });
      matches_[t] = equal == found->second.end() ? found->second : std::vector<const TensorSchema*>{*equal};
    }
  }

  /// Calls visit(run) for what the target needs of elements [begin, end) of a tensor's unit, in order of the target's
  /// tensors.
  template <class Visit>
  void each(size_t tensor, int64_t begin, int64_t end, const Visit& visit) const {
    const TensorSchema& here = tensors_[tensor];
    for (const TensorSchema* there : matches_[tensor]) {
      const auto visit_run = [&](const Run& run) { visit_wanted(run, visit); };
      if (same_place(here, *there)) {
        // The padding after a tensor is that of units that are the same.
        const int64_t last = same_ ? end : std::min(end, here.offset + here.elements());
        visit_run({std::max(begin, here.offset), last, there->unit, there->offset - here.offset});
      } else {
        each_common_row(here, *there, begin, end, visit_run);
      }
    }
  }

 private:
  static bool same_place(const TensorSchema& a, const TensorSchema& b) {
    return a.place() == b.place() && a.rows == b.rows && a.columns == b.columns;
  }

  /// The parts of rows that two blocks of a tensor have in common.
  template <class Visit>
  static void each_common_row(const TensorSchema& here, const TensorSchema& there, int64_t begin, int64_t end,
                              const Visit& visit) {
    const TensorBlock a = here.place(), b = there.place();
    const int64_t width = std::max<int64_t>(here.columns, 1), other_width = std::max<int64_t>(there.columns, 1);
    const int64_t column = std::max(a.first_column, b.first_column);
    const int64_t columns = std::min(a.first_column + width, b.first_column + other_width) - column;
    const int64_t first = std::max(a.first_row + std::max<int64_t>(begin - here.offset, 0) / width, b.first_row);
    const int64_t last = std::min(
        {a.first_row + here.rows, b.first_row + there.rows, a.first_row + (end - here.offset + width - 1) / width});
    for (int64_t row = first; row < last && columns > 0; ++row) {
      const int64_t from = here.offset + (row - a.first_row) * width + column - a.first_column;
      const int64_t to = there.offset + (row - b.first_row) * other_width + column - b.first_column;
      visit(Run{std::max(begin, from), std::min(end, from + columns), there.unit, to - from});
    }
  }

  template <class Visit>
  void visit_wanted(const Run& run, const Visit& visit) const {
    for (const ShardBorders& part : wanted_[static_cast<size_t>(run.unit)]) {
      const Run wanted{std::max(run.begin, part.begin - run.shift), std::min(run.end, part.end - run.shift), run.unit,
                       run.shift};
      if (wanted.begin < wanted.end) visit(wanted);
    }
  }

  const std::vector<TensorSchema>& tensors_;
  bool same_;
  std::vector<std::vector<ShardBorders>> wanted_;          ///< by unit of the target
  std::vector<std::vector<const TensorSchema*>> matches_;  ///< tensors of the target, by tensor of the checkpoint
};

/// Describes why the target cannot take the checkpoint's tensors; empty if it can.
std::string obstacle(const Manifest& manifest, const StateTarget& target, const Schema& wanted) {
  if (!target.may_lack()) return difference(manifest.schema, wanted);
  const Schema stored = without_critic(manifest.schema, wanted);
  const bool same_blocks = stored.has_same_blocks(wanted);
  if (!manifest.frozen) return same_blocks ? difference(stored, wanted) : tensor_difference(stored, wanted);
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

/// Copies elements of one part that the target needs.
void load_run(const FileHandle& file, const StatePlane& plane, const IndexEntry& entry, const Run& run,
              StateTarget& target, std::span<float> buffer, const Pause& pause) {
  const int64_t at_once = plane.elements_in(static_cast<int64_t>(buffer.size_bytes()));
  LLMTRAIN_CHECK(at_once > 0, "the buffer of a checkpoint must hold at least one chunk");
  StreamHash hash;
  for (int64_t at = run.begin; at < run.end;) {
    const int64_t count = std::min(at_once, run.end - at);
    const int64_t bytes = plane.bytes(count);
    file.read(entry.offset + plane.bytes(at - entry.range.begin), bytes, buffer.data());
    hash.update(buffer.data(), static_cast<size_t>(bytes));
    target.write(run.unit, entry.range.plane, at + run.shift, count, buffer.data());
    at += count;
    pause();
  }
  // It was verified before; parts that are read whole are compared again, since the disk can fail in between.
  if (run.begin == entry.range.begin && run.end == entry.range.end && hash.digest() != entry.hash) {
    throw UserError(ExitCode::io, file.path() + ": the file has changed during reading");
  }
}

/// Shards that have elements which the target needs, in order.
std::vector<int64_t> needed_shards(const Manifest& manifest, const Places& places) {
  const Schema& schema = manifest.schema;
  std::vector<uint8_t> needed(manifest.shards.size());
  for (size_t t = 0; t < schema.tensors.size(); ++t) {
    const UnitSchema& unit = schema.units[static_cast<size_t>(schema.tensors[t].unit)];
    places.each(t, 0, unit.elements, [&](const Run& run) {
      mark_shards(unit, {run.begin, run.end}, manifest.sharding(), needed);
    });
  }
  std::vector<int64_t> found;
  for (size_t shard = 0; shard < needed.size(); ++shard) {
    if (needed[shard] != 0) found.push_back(static_cast<int64_t>(shard));
  }
  return found;
}

/// Reads what the target needs of one shard.
void load_shard(const FolderHandle& folder, const Manifest& manifest, int64_t shard, const Places& places,
                StateTarget& target, std::span<float> buffer, const Pause& pause) {
  const CheckpointFile& listed = manifest.shards[static_cast<size_t>(shard)].file;
  const FileHandle file = folder.open_to_read(listed.name);
  check_size(file, listed.bytes);
  for (const IndexEntry& entry : read_shard_index(file, manifest, shard).entries) {
    const StateRange& range = entry.range;
    if (!target.wants(range.plane)) continue;
    places.each(static_cast<size_t>(range.tensor), range.begin, range.end, [&](const Run& run) {
      load_run(file, plane_of(manifest.schema, range), entry, run, target, buffer, pause);
    });
  }
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
    const Places places(manifest.schema, wanted, target);
    Progress progress("loading the checkpoint", std::ssize(manifest.shards));
    for (const int64_t shard : needed_shards(manifest, places)) {
      progress.set(shard);
      load_shard(folder, manifest, shard, places, target, buffer, pause);
    }
  });
  target.finish();
}

}  // namespace llmtrain
