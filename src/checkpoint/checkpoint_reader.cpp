#include "checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/shard_index.hpp"
#include "core/message.hpp"
#include "core/parallel_for.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

constexpr const char* while_verifying = "while a checkpoint was verified";
constexpr int64_t pieces_before_pause = 16;  // of each thread

int64_t pieces_of(const CheckpointFile& file) { return (file.bytes + hash_piece - 1) / hash_piece; }

void check_size(const FileHandle& file, int64_t expected) {
  if (const int64_t found = file.size(); found != expected) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {} bytes instead of {}", file.path(), found, expected));
  }
}

/// Which tensor of a shard is not what was saved; empty: none.
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
    for (int64_t begin = 0; begin < entry.part.bytes();) {
      const int64_t count = std::min(hash_piece, entry.part.bytes() - begin);
      file.read(entry.offset + begin, count, buffer.data());
      hash.update(buffer.data(), static_cast<size_t>(count));
      begin += count;
      pause();
    }
    if (hash.digest() == entry.hash) continue;
    return fmt::format("{} of tensor {}, elements {} to {} of its unit: hash {} instead of {}",
                       name_of(entry.part.state), manifest.schema.tensors[static_cast<size_t>(entry.part.tensor)].name,
                       entry.part.begin, entry.part.end, hex(hash.digest()), hex(entry.hash));
  }
  return {};
}

/// The share of this rank in the pieces of all files, and what is wrong with files on the way.
class PieceReader {
 public:
  PieceReader(const std::string& path, const std::vector<CheckpointFile>& files, int64_t begin, int64_t end,
              int threads)
      : path_(path), files_(files), begin_(begin), end_(end), threads_(threads) {}

  std::vector<Digest> digests;
  std::string problems;  ///< a line each

  void read(const Pause& pause) {
    digests.resize(static_cast<size_t>(end_ - begin_));
    int64_t first = 0;
    for (const CheckpointFile& file : files_) {
      const int64_t last = first + pieces_of(file);
      const int64_t from = std::max(first, begin_), to = std::min(last, end_);
      if (from < to) read_file(file, first, from, to, pause);
      first = last;
    }
  }

 private:
  void read_file(const CheckpointFile& file, int64_t first, int64_t from, int64_t to, const Pause& pause) {
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
      if (where.empty() && files[f].name.starts_with("shard-")) where = "; in what HDF5 keeps between the tensors";
    } catch (const UserError& error) {
      where = fmt::format("; {}", error.what());
    }
    problems += fmt::format("{}/{}: its hash is {} instead of {}{}\n", path, files[f].name, hex(found),
                            hex(files[f].hash), where);
  }
  return problems;
}

/// Lines of all ranks, each once.
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

/// Collective: empty, or what is wrong with the files.
std::string check_files(const std::string& path, const Manifest& manifest, Communicator& communicator) {
  const std::vector<CheckpointFile> files = manifest.all_files();
  int64_t pieces = 0;
  for (const CheckpointFile& file : files) pieces += pieces_of(file);
  const int64_t each = pieces / communicator.size(), rest = pieces % communicator.size();
  const auto border = [&](int64_t r) { return each * r + rest * r / communicator.size(); };
  PieceReader reader(path, files, border(communicator.rank()), border(communicator.rank() + 1),
                     worker_threads(communicator));
  run_cancellable(communicator, while_verifying, [&](const Pause& pause) { reader.read(pause); });
  if (std::string problems = join_problems(communicator.gather_all(reader.problems)); !problems.empty()) {
    return problems;
  }
  Message mine;
  mine.put(reader.digests);
  std::vector<Digest> all;
  for (const std::string& part : communicator.gather_all(mine.bytes())) Message(part).take(all);
  std::string problems;
  run_cancellable(communicator, while_verifying, [&](const Pause& pause) {
    if (communicator.rank() == 0) problems = compare_hashes(path, manifest, files, all, pause);
  });
  communicator.broadcast(problems);
  return join_problems({problems});
}

/// That of a folder, which is of the step in its name where it has one.
Manifest parse_manifest_of(const std::string& path, const std::string& text) {
  Manifest manifest = parse_manifest(text, path + "/" + manifest_name);
  const auto step = step_of(std::filesystem::path(path).filename().string());
  if (step && *step != manifest.step) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: its manifest is of step {}", path, manifest.step));
  }
  return manifest;
}

/// Rank 0's manifest text, or its reason to refuse, on all ranks.
Manifest read_manifest_together(const std::string& path, Communicator& communicator) {
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    text = FolderHandle::open(path, FolderHandle::Links::refused)
               .open_to_read(manifest_name)
               .read_text(max_manifest_bytes);
    parse_manifest_of(path, text);
  });
  communicator.broadcast(text);
  return parse_manifest_of(path, text);
}

/// Copies what the target wants of one part.
void load_part(const FileHandle& file, const IndexEntry& entry, int64_t unit, StateTarget& target,
               std::span<float> buffer, const Pause& pause) {
  const ShardBorders wanted = target.wanted(unit);
  const int64_t begin = std::max(entry.part.begin, wanted.begin), end = std::min(entry.part.end, wanted.end);
  StreamHash hash;
  for (int64_t at = begin; at < end;) {
    const int64_t count = std::min(static_cast<int64_t>(buffer.size()), end - at);
    file.read(entry.offset + (at - entry.part.begin) * state_bytes, count * state_bytes, buffer.data());
    hash.update(buffer.data(), static_cast<size_t>(count * state_bytes));
    target.write(unit, entry.part.state, at, count, buffer.data());
    at += count;
    pause();
  }
  // Verified before; what is read whole is compared once more, as the disk may fail between the two.
  if (begin == entry.part.begin && end == entry.part.end && hash.digest() != entry.hash) {
    throw UserError(ExitCode::io, file.path() + ": the file has changed while it was read");
  }
}

bool has_wanted(const Schema& schema, const StateTarget& target, int64_t shard, int64_t shards) {
  for (size_t u = 0; u < schema.units.size(); ++u) {
    const ShardBorders has = borders_of_shard(schema.units[u].elements, shard, shards);
    const ShardBorders wanted = target.wanted(static_cast<int64_t>(u));
    if (std::max(has.begin, wanted.begin) < std::min(has.end, wanted.end)) return true;
  }
  return false;
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
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) steps = published_steps(folder);
  });
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
                              "start again by itself: restore one, or use another run.name{}",
                              folder, reasons));
}

void load_checkpoint(const std::string& path, const Manifest& manifest, StateTarget& target, std::span<float> buffer,
                     Communicator& communicator) {
  LLMTRAIN_CHECK(!buffer.empty(), "a checkpoint needs a buffer");
  run_cancellable(communicator, "while a checkpoint was read", [&](const Pause& pause) {
    if (const std::string what = difference(manifest.schema, target.schema()); !what.empty()) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: not a checkpoint of this model: {}", path, what));
    }
    const FolderHandle folder = FolderHandle::open(path, FolderHandle::Links::refused);
    const auto shards = static_cast<int64_t>(manifest.shards.size());
    for (int64_t shard = 0; shard < shards; ++shard) {
      if (!has_wanted(manifest.schema, target, shard, shards)) continue;
      const CheckpointFile& listed = manifest.shards[static_cast<size_t>(shard)].file;
      const FileHandle file = folder.open_to_read(listed.name);
      check_size(file, listed.bytes);
      for (const IndexEntry& entry : read_shard_index(file, manifest, shard).entries) {
        if (!target.wants(entry.part.state)) continue;
        const TensorSchema& tensor = manifest.schema.tensors[static_cast<size_t>(entry.part.tensor)];
        load_part(file, entry, tensor.unit, target, buffer, pause);
      }
    }
  });
  target.finish();
}

}  // namespace llmtrain
