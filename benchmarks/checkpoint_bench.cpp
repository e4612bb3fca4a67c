// Checkpoints: the layout of a large model on many ranks, and the rate of writing.
//
// usage: checkpoint_bench layout FOLDER [shards]
//            the tensors of Llama 3 70B, each side a 57th, in so many (1000) shards: written, verified and read by one
//            process, one shard after the other; sizes of the files and times
//        mpirun -n RANKS checkpoint_bench rate FOLDER [MiB per rank [rounds]]
//            a checkpoint against a plain file per rank with fsync, and against what the disk takes past the cache

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include "parallel/runtime.hpp"

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

/// Numbers that depend on their place.
constexpr int64_t period = 8191;
int64_t phase_of(int64_t unit, StateKind kind, int64_t element) {
  return (unit * 7 + static_cast<int64_t>(kind) * 3 + element) % period;
}
float value_at(int64_t unit, StateKind kind, int64_t element) {
  return static_cast<float>(phase_of(unit, kind, element)) * 0.5F;
}

class Numbers : public StateSource {
 public:
  /// For buffers of so many elements: values are copied, as those of a store are.
  Numbers(Schema schema, size_t most) : schema_(std::move(schema)), values_(most + static_cast<size_t>(period)) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = value_at(0, StateKind::master, static_cast<int64_t>(i));
  }
  Schema schema() const override { return schema_; }
  void read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const override {
    std::copy_n(values_.data() + phase_of(unit, kind, begin), count, out);
  }

 private:
  Schema schema_;
  std::vector<float> values_;
};

/// One rank of `size`; counts numbers that are not at their place.
class Reader : public StateTarget {
 public:
  Reader(Schema schema, int64_t rank, int64_t size) : schema_(std::move(schema)), rank_(rank), size_(size) {}
  Schema schema() const override { return schema_; }
  ShardBorders wanted(int64_t unit) const override {
    return borders_of_shard(schema_.units[static_cast<size_t>(unit)].elements, rank_, size_);
  }
  void write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) override {
    for (int64_t i = 0; i < count; ++i) wrong += values[i] == value_at(unit, kind, begin + i) ? 0 : 1;
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
             manifest.shards.front().index_bytes, elements * state_bytes);
  fmt::print("manifest {} bytes, view {} bytes\n", bytes_of(path + "/" + manifest_name),
             bytes_of(path + "/" + view_name));
  fmt::print("shards written, synced and read back in {:.2f} s ({:.1f} ms each); view and manifest {:.2f} s\n", written,
             1e3 * written / static_cast<double>(shards), completed);
  fmt::print("verified in {:.2f} s; read by 8 ranks, one after the other, in {:.2f} s\n", verified, read);
  fs::remove_all(path);
  return wrong == 0 ? 0 : 1;
}

/// Writes `bytes` of a buffer to a new file, in pieces, then syncs. Flags of open, e.g. O_DIRECT.
void write_plain(const std::string& path, int64_t bytes, const char* buffer, int64_t piece, int flags) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0640);
  if (file < 0) throw UserError(ExitCode::cannot_create, path + ": cannot be created so");
  for (int64_t done = 0; done < bytes; done += piece) {
    if (::write(file, buffer, static_cast<size_t>(piece)) != piece)
      throw UserError(ExitCode::io, path + ": writing failed");
  }
  const bool synced = ::fsync(file) == 0;
  ::close(file);
  if (!synced) throw UserError(ExitCode::io, path + ": fsync failed");
}

/// Reads it from the disk.
void read_plain(const std::string& path, int64_t bytes, char* buffer, int64_t piece) {
  const FileHandle file = FileHandle::open_to_read(path);
  file.drop_cached();
  for (int64_t done = 0; done < bytes; done += piece) file.read(done, piece, buffer);
}

/// Seconds that the slowest rank takes.
double timed(Communicator& communicator, const std::function<void()>& work) {
  communicator.barrier();
  const double begin = now();
  raise_together(communicator, work);
  return now() - begin;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int rate(const std::string& folder, int64_t megabytes, int rounds, Communicator& communicator) {
  constexpr int64_t piece = int64_t{1} << 22;
  const int64_t bytes = (megabytes << 20) / piece * piece, ranks = communicator.size();
  const std::unique_ptr<char, decltype(&std::free)> buffer(
      static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(piece))), &std::free);
  LLMTRAIN_CHECK(buffer != nullptr, "no memory");
  for (int64_t i = 0; i < piece; ++i) buffer.get()[i] = static_cast<char>(i * 2654435761 >> 13);
  fs::create_directories(folder);
  const std::string own = folder + fmt::format("/plain-{}", communicator.rank());
  const Schema schema = make_schema({{"unit", {matrix("weight", bytes * ranks / 12 / 1024, 1024)}}});
  std::vector<float> staging(size_t{1} << 18);
  const Numbers numbers(schema, staging.size());
  SaveRequest request;

  const std::array<std::pair<const char*, std::function<void()>>, 5> ways = {
      {{"disk, past the cache", [&] { write_plain(own, bytes, buffer.get(), piece, O_DIRECT); }},
       {"plain file per rank", [&] { write_plain(own, bytes, buffer.get(), piece, 0); }},
       {"plain file per rank, read back from the disk",
        [&] {
          write_plain(own, bytes, buffer.get(), piece, 0);
          read_plain(own, bytes, buffer.get(), piece);
        }},
       {"checkpoint, read back from the cache",
        [&] {
          request.from_disk = false;
          save_checkpoint(folder, numbers, request, staging, communicator);
        }},
       {"checkpoint, read back from the disk", [&] {
          request.from_disk = true;
          save_checkpoint(folder, numbers, request, staging, communicator);
        }}}};
  std::array<std::vector<double>, 5> speeds;  // of the ways, GB/s
  for (int round = 0; round < rounds; ++round) {
    for (size_t way = 0; way < ways.size(); ++way) {
      const auto& [name, work] = ways[way];
      ++request.step;
      double seconds = 0;
      try {
        seconds = timed(communicator, work);
      } catch (const UserError& error) {
        if (communicator.rank() == 0) fmt::print("{}: {}\n", name, error.what());
      }
      ::unlink(own.c_str());
      if (communicator.rank() != 0) continue;
      if (seconds > 0) {
        speeds[way].push_back(static_cast<double>(bytes * ranks) / 1e9 / seconds);
        fmt::print("{}: {:.3f} GB/s\n", name, speeds[way].back());
      }
      for (const int64_t step : published_steps(folder)) fs::remove_all(folder + "/" + checkpoint_name(step));
    }
  }
  communicator.barrier();
  if (communicator.rank() != 0) return 0;
  fs::remove_all(folder + "/latest");
  constexpr size_t plain = 2, checkpoint = 4;
  if (!speeds[plain].empty() && !speeds[checkpoint].empty()) {
    const double of_plain = median(speeds[plain]), of_checkpoint = median(speeds[checkpoint]);
    fmt::print("\nmedians of {} rounds: {} {:.3f} GB/s / {} {:.3f} GB/s = {:.2f}\n", rounds, ways[checkpoint].first,
               of_checkpoint, ways[plain].first, of_plain, of_checkpoint / of_plain);
  }
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
