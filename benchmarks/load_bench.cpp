// Loading a Hugging Face folder into ZeRO shards against a plain read of the same bytes by as many ranks and threads,
// in turn: seconds, GB/s of the file and the ratio, from the disk (cold) and from the page cache (warm).
//
// usage: load_bench --make FOLDER GIGABYTES fp32|bf16   writes a model of random weights
//        mpirun -n RANKS load_bench FOLDER [rounds]     every rank reads its share, on OMP_NUM_THREADS threads
//
// The plain read is dd's: pieces of 8 MiB into one buffer per thread, used again and again; the load converts to fp32
// and leaves everything in memory that it touches for the first time. "Kept" is a plain read that does that, too,
// without converting.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files/folder_handle.hpp"
#include "core/parallel_for.hpp"
#include "hf/export.hpp"
#include "hf/weights/load_weights.hpp"
#include "hf/weights/weight_index.hpp"
#include "models/models.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

constexpr int64_t share_bytes = int64_t{8} << 20;

/// Llama's shape, with as many layers as fit the bytes.
void make(const std::string& folder, double gigabytes, const std::string& type) {
  const double width = type == "bf16" ? 2 : 4, layer = 2048.0 * (2 * 2048 + 2 * 512 + 3 * 5632) * width;
  const int layers = std::max(1, static_cast<int>((gigabytes * 1e9 - 2 * 32000 * 2048 * width) / layer));
  const ModelConfig config =
      parse_hf_config(
          fmt::format(R"({{"model_type":"llama","vocab_size":32000,"hidden_size":2048,"num_hidden_layers":{},)"
                      R"("intermediate_size":5632,"num_attention_heads":32,"num_key_value_heads":8}})",
                      layers),
          "config.json")
          .model;
  const DecoderShape shape = decoder_shape(config, config.vocab_size);
  uint32_t state = 1;
  const auto random = [&](int /*unit*/, int64_t begin, int64_t end, float* out) {
    for (int64_t i = 0; i < end - begin; ++i) {
      state = state * 1664525u + 1013904223u;
      out[i] = std::bit_cast<float>(0x3C000000u | (state >> 9)) * (state & 1u ? 1.0f : -1.0f);
    }
  };
  ExportOptions options;
  options.output = folder;
  options.type = weight_type_of(type);
  options.file_bytes = 500'000'000;
  const auto communicator = make_local_communicator();
  export_model(options, shape, Decoder(shape).units(), random, *communicator);
}

class Bench {
 public:
  Bench(const std::string& path, Runtime& runtime)
      : runtime_(runtime), communicator_(runtime.communicator()), threads_(worker_threads(communicator_)), path_(path) {
    const FolderHandle folder = FolderHandle::open(path);
    const std::string text = folder.open_to_read("config.json").read_text(max_config_bytes);
    const ModelConfig config = parse_hf_config(text, "config.json").model;
    shape_ = decoder_shape(config, config.vocab_size);
    ParamStoreOptions options;
    options.zero_stage = 3;
    options.rank = communicator_.rank();
    options.size = communicator_.size();
    params_ = std::make_unique<ParamStore>(frozen(Decoder(shape_).units()), options);
    params_->plan(arena_);
    memory_.emplace(arena_.bytes());
    arena_.commit(memory_->data());
    params_->start(communicator_, runtime_.stream());
    for (const std::string& name : folder.names()) {
      if (!name.ends_with(".safetensors")) continue;
      files_.push_back(folder.open_to_read(name));
      bytes_ += files_.back().size();
    }
    kept_ = std::make_unique<DeviceBuffer>(bytes_ / communicator_.size() + static_cast<int64_t>(files_.size()));
  }

  void run(int rounds) {
    if (communicator_.rank() == 0) {
      fmt::print("{:.2f} GB in {} files, {} ranks x {} threads\n", static_cast<double>(bytes_) * 1e-9, files_.size(),
                 communicator_.size(), threads_);
    }
    for (const bool cold : {true, false}) {
      std::array<std::vector<double>, 3> seconds;
      for (int round = 0; round < rounds; ++round) {
        for (size_t what = 0; what < seconds.size(); ++what) {
          const size_t turn = (what + static_cast<size_t>(round)) % seconds.size();
          seconds[turn].push_back(timed(cold, [&] { turn == 0 ? load() : read_plainly(turn == 2); }));
        }
      }
      if (communicator_.rank() == 0) print(cold ? "cold" : "warm", seconds);
    }
  }

 private:
  template <class Work>
  double timed(bool cold, const Work& work) {
    for (const FileHandle& file : files_) {
      if (cold && communicator_.rank() == 0) file.drop_cached();
    }
    communicator_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    work();
    communicator_.barrier();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void load() { load_weights(path_, shape_, *params_, communicator_, runtime_.stream()); }

  /// This rank's part of every file.
  void read_plainly(bool keep) const {
    struct Piece {
      const FileHandle* file;
      int64_t begin, end;
      char* place;
    };
    std::vector<Piece> pieces;
    for (const FileHandle& file : files_) {
      const int64_t ranks = communicator_.size(), rank = communicator_.rank(), size = file.size();
      const int64_t last = size * (rank + 1) / ranks;
      for (int64_t at = size * rank / ranks; at < last; at += share_bytes) {
        pieces.push_back({&file, at, std::min(at + share_bytes, last), nullptr});
      }
    }
    int64_t next = 0;
    for (Piece& piece : pieces) {
      if (keep) piece.place = static_cast<char*>(kept_->data()) + next;
      next += piece.end - piece.begin;
    }
    parallel_for(pieces.size(), threads_, [&](size_t i) {
      thread_local std::vector<char> buffer(static_cast<size_t>(share_bytes));
      const Piece& piece = pieces[i];
      piece.file->read(piece.begin, piece.end - piece.begin, keep ? piece.place : buffer.data());
    });
  }

  void print(const char* state, std::array<std::vector<double>, 3>& seconds) const {
    const auto median = [](std::vector<double>& values) {
      std::ranges::sort(values);
      return values[values.size() / 2];
    };
    const double load = median(seconds[0]), plain = median(seconds[1]), kept = median(seconds[2]);
    const double gigabytes = static_cast<double>(bytes_) * 1e-9;
    fmt::print(
        "{}: load {:.3f} s {:.2f} GB/s, plain read {:.3f} s {:.2f} GB/s, kept {:.3f} s {:.2f} GB/s; load / plain "
        "{:.2f}, load / kept {:.2f} (medians of {})\n",
        state, load, gigabytes / load, plain, gigabytes / plain, kept, gigabytes / kept, plain / load, kept / load,
        seconds[0].size());
  }

  Runtime& runtime_;
  Communicator& communicator_;
  int threads_;
  std::string path_;
  DecoderShape shape_;
  std::unique_ptr<ParamStore> params_;
  Arena arena_;
  std::optional<DeviceBuffer> memory_;
  std::unique_ptr<DeviceBuffer> kept_;
  std::vector<FileHandle> files_;
  int64_t bytes_ = 0;
};

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  Runtime runtime(argc, argv);
  return runtime.guard([&] {
    runtime.start_device();
    if (argc == 5 && std::string(argv[1]) == "--make") {
      make(argv[2], std::atof(argv[3]), argv[4]);
    } else if (argc == 2 || argc == 3) {
      Bench(argv[1], runtime).run(argc == 3 ? std::atoi(argv[2]) : 5);
    } else {
      fmt::print(
          stderr,
          "usage: load_bench --make FOLDER GIGABYTES fp32|bf16, or mpirun -n RANKS load_bench FOLDER [rounds]\n");
      return 64;
    }
    return 0;
  });
}
