// State on a local disk (parallel.offload_optimizer = nvme): how fast it moves by each way that there is, in turn, from
// and to the same file: an update's pass (masters and moments read, these and bf16 weights written), a pass that reads
// the masters, and weights of whole units read ahead. Nothing is computed in between but the sums.
//
// usage: offload_bench FOLDER [million parameters (64)] [rounds (5)]

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "device/device.hpp"
#include "params/offload_ahead.hpp"
#include "params/offload_ring.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece_elements = int64_t{1} << 18, unit_elements = int64_t{8} << 20;
constexpr std::array ways = {"calls", "ring", "fixed"};
constexpr std::array tasks = {"update", "masters", "weights ahead"};

struct Cost {
  double wall, processor;  ///< seconds
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Call>
Cost cost_of(const Call& call) {
  const double processor = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  call();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          processor_seconds() - processor};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The file, and memory for what moves.
struct Bench {
  Bench(const std::string& folder, int64_t elements) : layout({4, 4, 4, 2}, piece_elements) {
    std::vector<std::string> names;
    for (int64_t at = 0; at < elements; at += unit_elements) {
      layout.add(0, std::min(unit_elements, elements - at));
      names.push_back(fmt::format("unit {}", names.size()));
    }
    const int64_t slots = OffloadRing::slots;
    memory = PinnedBuffer(slots * layout.max_piece() + OffloadAhead::bytes(layout, offloaded_weights) +
                          OffloadLayout::alignment);
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    constexpr uintptr_t page = OffloadLayout::alignment;
    char* next = static_cast<char*>(memory.data()) + (page - at % page) % page;
    for (char*& buffer : buffers) {
      buffer = next;
      next += layout.max_piece();
    }
    unit = next;
    file = std::make_unique<OffloadFile>(layout, folder, names);
  }

  /// Bytes that a task moves.
  int64_t bytes(size_t task) const {
    int64_t all = 0;
    for (const OffloadPiece& piece : layout.pieces()) {
      if (task == 0) all += layout.bytes_of(piece, 0, 3) + layout.bytes_of(piece, 0, 4);
      if (task == 1) all += layout.bytes_of(piece, 0, 1);
      if (task == 2) all += layout.bytes_of(piece, 3, 4);
    }
    return all;
  }

  /// Of each task; `text` says how it was done.
  std::array<Cost, 3> costs(const char* way, std::string& text) {
    setenv("LLMTRAIN_OFFLOAD_IO", way, 1);
    std::array<Cost, 3> all{};
    {
      OffloadRing ring(*file, buffers);
      text = ring.way();
      const auto pass = [&](const OffloadRing::Kinds& kinds) {
        for (ring.begin(kinds); ring.next();) {
        }
      };
      all[0] = cost_of([&] { pass({0, 3, 0, 4}); });
      all[1] = cost_of([&] { pass({0, 1, 0, 0}); });
    }
    OffloadAhead ahead(*file, offloaded_weights, unit);
    all[2] = cost_of([&] {
      for (int u = 0; u < layout.units(); ++u) {
        ahead.take(u);
        ahead.begin(u + 1);
      }
    });
    return all;
  }

  OffloadLayout layout;
  PinnedBuffer memory;
  std::array<char*, OffloadRing::slots> buffers{};
  char* unit = nullptr;
  std::unique_ptr<OffloadFile> file;
};

void run(const std::string& folder, int64_t elements, int rounds) {
  Bench bench(folder, elements);
  std::string text;
  bench.costs(ways[0], text);  // the file system has no blocks before
  std::array<std::array<std::vector<Cost>, tasks.size()>, ways.size()> costs;
  std::array<std::string, ways.size()> texts;
  for (int round = 0; round < rounds; ++round) {
    for (size_t w = 0; w < ways.size(); ++w) {
      const std::array<Cost, 3> now = bench.costs(ways[w], texts[w]);
      for (size_t t = 0; t < tasks.size(); ++t) costs[w][t].push_back(now[t]);
    }
  }
  for (size_t w = 0; w < ways.size(); ++w) fmt::print("{}: {}\n", ways[w], texts[w]);
  fmt::print("{:<14} {:<6} {:>8} {:>10}   {}\n", "task", "way", "GB/s", "CPU s/GB",
             "times as fast as calls (least, most)");
  for (size_t t = 0; t < tasks.size(); ++t) {
    const double gigabytes = 1e-9 * static_cast<double>(bench.bytes(t));
    for (size_t w = 0; w < ways.size(); ++w) {
      std::vector<double> wall, processor, ratio;
      for (size_t r = 0; r < costs[w][t].size(); ++r) {
        wall.push_back(costs[w][t][r].wall);
        processor.push_back(costs[w][t][r].processor);
        ratio.push_back(costs[0][t][r].wall / costs[w][t][r].wall);
      }
      const auto [least, most] = std::minmax_element(ratio.begin(), ratio.end());
      fmt::print("{:<14} {:<6} {:>8.3f} {:>10.3f}   {:.2f} ({:.2f}, {:.2f})\n", tasks[t], ways[w],
                 gigabytes / median(wall), median(processor) / gigabytes, median(ratio), *least, *most);
    }
  }
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') {
    fmt::print(stderr, "usage: offload_bench FOLDER [million parameters (64)] [rounds (5)]\n");
    return 64;
  }
  try {
    const int64_t millions = argc > 2 ? std::atoll(argv[2]) : 64;
    llmtrain::run(argv[1], std::max<int64_t>(millions, 1) * 1000000, argc > 3 ? std::max(std::atoi(argv[3]), 1) : 5);
  } catch (const llmtrain::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
