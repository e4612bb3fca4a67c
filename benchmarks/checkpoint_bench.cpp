// Checkpoints: the layout of a large model on many ranks, and the rate of writing.
//
// usage: checkpoint_bench layout FOLDER [shards]
//            the tensors of Llama 3 70B, each side a 57th, in so many (1000) shards: written, verified and read by one
//            process, one shard after the other; sizes of the files and times
//        mpirun -n RANKS checkpoint_bench rate FOLDER [MiB per rank [rounds]]
//            a checkpoint against plain files, one a rank, each with fsync of file and folder as a checkpoint has:
//            past the cache (O_DIRECT), which is what the disk takes; through the page cache; and so with the hints
//            that a checkpoint gives the system (space reserved, write-back begun behind every 4 MiB, reading begun
//            ahead). A checkpoint always goes through the page cache; it is read back from there or, as a run does by
//            default (checkpoint.verify), from the disk. Every round runs all ways once, beginning with another one,
//            each behind a file of the same size that was written to the page cache and removed.

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

ParamSpec matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {name, rows, columns, columns > 1, Initializer::zeros(), {{name, 0, rows}}};
}

/// 723 tensors in 82 units; width 144 instead of 8192, 18 instead of 1024 rows of keys, 504 instead of 28672.
Schema llama_70b_twin() {
  constexpr int64_t width = 144, keys = 18, inner = 504, vocabulary = 2250;
  std::vector<UnitSpec> units{{"embedding", {matrix("model.embed_tokens.weight", vocabulary, width)}}};
  for (int b = 0; b < 80; ++b) {
    const std::string prefix = fmt::format("model.layers.{}.", b);
    units.push_back(
        {fmt::format("block {}", b),
         {matrix(prefix + "self_attn.q_proj.weight", width, width),
          matrix(prefix + "self_attn.k_proj.weight", keys, width),
          matrix(prefix + "self_attn.v_proj.weight", keys, width),
          matrix(prefix + "self_attn.o_proj.weight", width, width),
          matrix(prefix + "mlp.gate_proj.weight", inner, width), matrix(prefix + "mlp.up_proj.weight", inner, width),
          matrix(prefix + "mlp.down_proj.weight", width, inner), matrix(prefix + "input_layernorm.weight", width, 1),
          matrix(prefix + "post_attention_layernorm.weight", width, 1)}});
  }
  units.push_back({"head", {matrix("lm_head.weight", vocabulary, width), matrix("model.norm.weight", width, 1)}});
  return make_schema(units);
}

/// Values that depend on their position.
constexpr int64_t period = 8191;
int64_t phase_of(int64_t unit, size_t plane, int64_t element) {
  return (unit * 7 + static_cast<int64_t>(plane) * 3 + element) % period;
}
float value_at(int64_t unit, size_t plane, int64_t element) {
  return static_cast<float>(phase_of(unit, plane, element)) * 0.5F;
}

class Numbers : public StateSource {
 public:
  /// Buffer of this many elements: values are copied, as from a store.
  Numbers(Schema schema, size_t most) : schema_(std::move(schema)), values_(most + static_cast<size_t>(period)) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = value_at(0, master_plane, static_cast<int64_t>(i));
  }
  Schema schema() const override { return schema_; }
  void read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const override {
    std::copy_n(values_.data() + phase_of(unit, plane, begin), count, static_cast<float*>(out));
  }

 private:
  Schema schema_;
  std::vector<float> values_;
};

/// One rank of `size`; counts values at a wrong position.
class Reader : public StateTarget {
 public:
  Reader(Schema schema, int64_t rank, int64_t size) : schema_(std::move(schema)), rank_(rank), size_(size) {}
  Schema schema() const override { return schema_; }
  std::vector<ShardBorders> wanted(int64_t unit) const override {
    return parts_of_shard(schema_.units[static_cast<size_t>(unit)], rank_, size_);
  }
  void write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) override {
    const auto* seen = static_cast<const float*>(values);
    for (int64_t i = 0; i < count; ++i) wrong += seen[i] == value_at(unit, plane, begin + i) ? 0 : 1;
    elements += count;
  }
  void finish() override {}

  int64_t elements = 0, wrong = 0;

 private:
  Schema schema_;
  int64_t rank_, size_;
};

int64_t bytes_of(const std::string& path) { return static_cast<int64_t>(fs::file_size(path)); }

int layout(const std::string& folder, int64_t shards, Communicator& communicator) {
  LLMTRAIN_CHECK(communicator.size() == 1, "layout is for one process");
  const Schema schema = llama_70b_twin();
  std::vector<float> buffer(size_t{1} << 18);
  const Numbers numbers(schema, buffer.size());
  SaveRequest request;
  request.step = 1;
  std::vector<CheckpointShard> sealed;
  double begin = now();
  const std::string attempt = create_attempt(folder, request.step, nullptr);
  for (int64_t s = 0; s < shards; ++s) {
    ShardFile file(attempt, schema, request.step, s, shards);
    file.write_state(numbers, buffer, nullptr);
    sealed.push_back(file.seal(nullptr));
  }
  const double written = now() - begin;
  begin = now();
  complete_attempt(attempt, schema, request, sealed);
  publish_attempt(folder, attempt, request.step, nullptr);
  const double completed = now() - begin;
  const std::string path = folder + "/" + checkpoint_name(request.step);
  begin = now();
  const Manifest manifest = verify_checkpoint(path, communicator);
  const double verified = now() - begin;
  begin = now();
  int64_t elements = 0, wrong = 0;
  for (int64_t rank = 0; rank < 8; ++rank) {
    Reader reader(schema, rank, 8);
    load_checkpoint(path, manifest, reader, buffer, communicator);
    elements += reader.elements;
    wrong += reader.wrong;
  }
  const double read = now() - begin;
  int64_t largest = 0, all = 0;
  for (const CheckpointShard& shard : manifest.shards) {
    largest = std::max(largest, shard.file.bytes);
    all += shard.file.bytes;
  }
  fmt::print("{} shards, {} tensors, {} numbers, {} wrong\n", shards, schema.tensors.size(), elements, wrong);
  fmt::print("shards: {} bytes in all, the largest {}, its index {}; state alone {}\n", all, largest,
             manifest.shards.front().index_bytes, elements * static_cast<int64_t>(sizeof(float)));
  fmt::print("manifest {} bytes, view {} bytes\n", bytes_of(path + "/" + manifest_name),
             bytes_of(path + "/" + view_name));
  fmt::print("shards written, synced and read back in {:.2f} s ({:.1f} ms each); view and manifest {:.2f} s\n", written,
             1e3 * written / static_cast<double>(shards), completed);
  fmt::print("verified in {:.2f} s; read by 8 ranks, one after the other, in {:.2f} s\n", verified, read);
  fs::remove_all(path);
  return wrong == 0 ? 0 : 1;
}

constexpr int64_t piece = int64_t{4} << 20;

/// Method of writing a plain file of one rank.
enum class Through : uint8_t { disk, cache, cache_with_hints };
/// Reading back of the file: none, from the page cache, or from the disk.
enum class ReadBack : uint8_t { no, cache, disk };

void read_plain(const FileHandle& file, int64_t bytes, char* buffer, bool hints) {
  constexpr int64_t ahead = int64_t{8} << 20;
  for (int64_t done = 0; done < bytes; done += piece) {
    if (hints) file.begin_read(done + piece, ahead);
    file.read(done, piece, buffer);
  }
}

/// FileHandle::bypass_cache() is a hint; here it must be so.
void bypass_cache(const FileHandle& file) {
  const int descriptor = ::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) throw UserError(ExitCode::cannot_create, file.path() + ": O_DIRECT is refused here");
  ::close(descriptor);
  file.bypass_cache();
}

/// Writes `bytes` to a new file piece by piece and syncs it and its folder.
void write_plain(const std::string& path, int64_t bytes, char* buffer, Through through, ReadBack back) {
  const FileHandle file = FileHandle::create(path);
  const bool hints = through == Through::cache_with_hints;
  if (through == Through::disk) bypass_cache(file);
  if (hints && !file.reserve(bytes)) throw UserError(ExitCode::io, path + ": the disk is full");
  for (int64_t done = 0; done < bytes; done += piece) {
    file.write(done, piece, buffer);
    if (hints) file.begin_sync(done, piece);
  }
  file.sync();
  sync_folder(folder_of(path));
  if (back == ReadBack::disk) file.drop_cached();
  if (back != ReadBack::no) read_plain(file, bytes, buffer, hints);
}

/// Touches memory for the page cache: a hypervisor that reclaims idle memory may need longer for it than the disk for
/// the bytes, so that the first method would be the slowest. Nothing of this goes to the disk.
void touch_cache(const std::string& folder, int64_t bytes, const char* buffer) {
  const FileHandle file = FileHandle::create_unnamed(folder);
  for (int64_t done = 0; done < bytes; done += piece) file.write(done, piece, buffer);
}

/// Seconds of the slowest rank.
double timed(Communicator& communicator, const std::function<void()>& work) {
  communicator.barrier();
  const double begin = now();
  throw_on_all_ranks(communicator, work);
  return now() - begin;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string plain_path(const std::string& folder, const Communicator& communicator) {
  return folder + fmt::format("/plain-{}", communicator.rank());
}

/// A method of writing, run once per round.
struct Way {
  const char* name;
  std::function<void()> work;
  std::vector<double> speeds = {};  ///< GB/s of all ranks, by round; 0: it failed
};

/// Median, minimum and maximum of the nonzero values.
std::string spread(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return "failed";
  const auto [least, most] = std::ranges::minmax(values);
  return fmt::format("{:.2f} ({:.2f}, {:.2f})", median(values), least, most);
}

std::vector<double> ratios(const Way& way, const Way& other) {
  std::vector<double> result;
  for (size_t round = 0; round < way.speeds.size(); ++round) {
    result.push_back(other.speeds[round] > 0 ? way.speeds[round] / other.speeds[round] : 0);
  }
  return result;
}

void print_table(const std::vector<Way>& plain, const std::vector<Way>& checkpoints) {
  fmt::print("\nMedians of the rounds (least, most).\n\n| what | GB/s |");
  for (const Way& of : checkpoints) fmt::print(" {} / it |", of.name);
  fmt::print("\n|---|---|");
  for (size_t i = 0; i < checkpoints.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const Way& way : plain) {
    fmt::print("| {} | {} |", way.name, spread(way.speeds));
    for (const Way& of : checkpoints) fmt::print(" {} |", spread(ratios(of, way)));
    fmt::print("\n");
  }
  for (const Way& way : checkpoints) {
    fmt::print("| {} | {} |", way.name, spread(way.speeds));
    for (size_t i = 0; i < checkpoints.size(); ++i) fmt::print(" |");
    fmt::print("\n");
  }
  fmt::print(
      "\nBoth checkpoints are written as the plain files with hints are, through the page cache, and compared with\n"
      "what was in memory. A run has them read back from the {} by default (checkpoint.verify).\n",
      SaveRequest{}.from_disk ? "disk" : "cache");
}

void run_way(Way& way, const std::string& folder, double bytes, Communicator& communicator) {
  double seconds = 0;
  try {
    seconds = timed(communicator, way.work);
  } catch (const UserError& error) {
    if (communicator.rank() == 0) fmt::print("{}: {}\n", way.name, error.what());
  }
  way.speeds.push_back(seconds > 0 ? bytes / 1e9 / seconds : 0);
  ::unlink(plain_path(folder, communicator).c_str());
  if (communicator.rank() != 0) return;
  if (seconds > 0) fmt::print("{}: {:.3f} GB/s\n", way.name, way.speeds.back());
  for (const int64_t step : published_steps(folder)) fs::remove_all(folder + "/" + checkpoint_name(step));
}

int rate(const std::string& folder, int64_t megabytes, int rounds, Communicator& communicator) {
  const int64_t bytes = (megabytes << 20) / piece * piece, ranks = communicator.size();
  const std::unique_ptr<char, decltype(&std::free)> buffer(
      static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(piece))), &std::free);
  LLMTRAIN_CHECK(buffer != nullptr, "no memory");
  for (int64_t i = 0; i < piece; ++i) buffer.get()[i] = static_cast<char>(i * 2654435761 >> 13);
  fs::create_directories(folder);
  ::unlink(plain_path(folder, communicator).c_str());  // left by a killed run
  const Schema schema = make_schema({{"unit", {matrix("weight", bytes * ranks / 12 / 1024, 1024)}}});
  std::vector<float> staging(size_t{1} << 18);
  const Numbers numbers(schema, staging.size());
  SaveRequest request;
  const auto plain_file = [&](Through through, ReadBack back) {
    return [&, through, back] { write_plain(plain_path(folder, communicator), bytes, buffer.get(), through, back); };
  };
  const auto checkpoint = [&](bool from_disk) {
    return [&, from_disk] {
      ++request.step;
      request.from_disk = from_disk;
      CheckpointSave save(folder, communicator);
      save.begin(schema, request);
      save.write(numbers, staging);
      if (save.needs_digest()) {
        communicator.barrier();
        save.digest();
      }
      save.gather();
      save.complete();
      save.publish();
    };
  };
  std::vector<Way> plain = {
      {"plain file per rank, past the cache", plain_file(Through::disk, ReadBack::no)},
      {"plain file per rank, past the cache, read back", plain_file(Through::disk, ReadBack::disk)},
      {"plain file per rank", plain_file(Through::cache, ReadBack::no)},
      {"plain file per rank, read back from the cache", plain_file(Through::cache, ReadBack::cache)},
      {"plain file per rank, read back from the disk", plain_file(Through::cache, ReadBack::disk)},
      {"plain file per rank with hints", plain_file(Through::cache_with_hints, ReadBack::no)},
      {"plain file per rank with hints, read back from the cache",
       plain_file(Through::cache_with_hints, ReadBack::cache)},
      {"plain file per rank with hints, read back from the disk",
       plain_file(Through::cache_with_hints, ReadBack::disk)}};
  std::vector<Way> checkpoints = {{"checkpoint, read back from the cache", checkpoint(false)},
                                  {"checkpoint, read back from the disk", checkpoint(true)}};
  const size_t ways = plain.size() + checkpoints.size();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways; ++i) {
      touch_cache(folder, bytes, buffer.get());
      const size_t w = (i + static_cast<size_t>(round)) % ways;
      run_way(w < plain.size() ? plain[w] : checkpoints[w - plain.size()], folder, static_cast<double>(bytes * ranks),
              communicator);
    }
  }
  communicator.barrier();
  if (communicator.rank() != 0) return 0;
  fs::remove_all(folder + "/latest");
  print_table(plain, checkpoints);
  return 0;
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what != "layout" && what != "rate") {
    fmt::print(
        stderr,
        "usage: checkpoint_bench layout FOLDER [shards], or mpirun ... checkpoint_bench rate FOLDER [MiB [ROUNDS]]\n");
    return 64;
  }
  llmtrain::Runtime runtime(argc, argv);
  return runtime.guard([&] {
    runtime.start_device();
    const std::string folder = argv[2];
    const int64_t given = argc > 3 ? std::atoll(argv[3]) : 0;
    llmtrain::Communicator& communicator = runtime.communicator();
    if (what == "layout") return llmtrain::layout(folder, given > 0 ? given : 1000, communicator);
    const int rounds = argc > 4 ? std::max(1, std::atoi(argv[4])) : 5;
    return llmtrain::rate(folder, given >= 4 ? given : 256, rounds, communicator);
  });
}
