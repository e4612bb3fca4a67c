// Collectives between ranks: the exchange of gradients with their sum (a reduce-scatter) and the gather of weights,
// beside MPI_Reduce_scatter_block and MPI_Allgather of the installed MPI, and beside what the memory can do (the triad
// of STREAM, by as many processes).
//
// usage: mpirun -n RANKS collective_bench [largest MiB (1024)] [rounds (5)]
//
// Sizes are those of the whole buffer. Each round runs every way once, in turn; medians over rounds of the slowest
// rank's time. Bound: a rank reads its range of every buffer and writes one (reduce-scatter), or reads what it lacks
// and writes it (all-gather), at the triad's speed of that round. LLMTRAIN_RANKS_PER_NODE=1: messages instead of shared
// memory.
//
// The bound with meetings adds twice what a cache line takes from one core to another, measured in the same round:
// ranks 0 and 1 send one to and fro, and look for it without a pause. A transfer in shared memory takes two such ways,
// for all ranks side by side (parallel/node_memory.hpp): nobody reads before it has seen the owner's number (offer() to
// offered()), and the owner goes on once it has seen that of its last reader (release() to is_read()); the next
// transfer is offered behind that, so neither way is hidden by another. Stores, fences, bookkeeping and what it takes
// to yield the core between looks, as transfers do after some hundred (below the table), are in no bound.

#include <fmt/core.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

void check(int code) { LLMTRAIN_CHECK(code == MPI_SUCCESS, "an MPI call failed"); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Memory for the largest size, for each method.
class Buffers {
 public:
  Buffers(int64_t bytes, Communicator& communicator) : other_(bytes), result_(bytes) {
    if (communicator.sharing_ranks() > 1) {
      const std::string refusal = communicator.sharing_refusal(bytes);
      if (!refusal.empty() && communicator.rank() == 0) fmt::print("{}\n", refusal);
      if (refusal.empty()) shared_ = communicator.allocate_shared(bytes);
    }
    if (shared_ == nullptr) own_ = DeviceBuffer(bytes);
  }
  void* exchanged() const { return shared_ != nullptr ? shared_.get() : own_.data(); }
  void* other() const { return other_.data(); }
  void* result() const { return result_.data(); }

 private:
  std::shared_ptr<void> shared_;
  DeviceBuffer own_, other_, result_;
};

/// A cache line that ranks 0 and 1 send back and forth, if they read each other's memory.
class Meetings {
 public:
  /// Collective.
  explicit Meetings(Communicator& communicator) : communicator_(communicator) {
    uint8_t of_one_node = communicator.rank() == 0 && communicator.reads_directly(1) ? 1 : 0;
    communicator.broadcast(&of_one_node, 1);
    MPI_Comm pair = MPI_COMM_NULL;
    const bool takes_part = of_one_node != 0 && communicator.rank() < 2;
    check(MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 0 : MPI_UNDEFINED, communicator.rank(), &pair));
    if (!takes_part) return;
    constexpr MPI_Aint page = 4096;  // the line lies in the middle of its own page
    char* own = nullptr;
    check(MPI_Win_allocate_shared(communicator.rank() == 0 ? page : 0, 1, MPI_INFO_NULL, pair, static_cast<void*>(&own),
                                  &window_));
    MPI_Aint bytes = 0;
    int unit = 0;
    char* memory = nullptr;
    check(MPI_Win_shared_query(window_, 0, &bytes, &unit, static_cast<void*>(&memory)));
    const intptr_t middle = (reinterpret_cast<intptr_t>(memory) + page / 2) / line * line;
    char* place = memory + (middle - reinterpret_cast<intptr_t>(memory));
    if (communicator.rank() == 0) new (place) Ball{0};
    check(MPI_Barrier(pair));
    ball_ = std::launder(reinterpret_cast<Ball*>(place));
    check(MPI_Comm_free(&pair));
  }
  ~Meetings() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
  }
  Meetings(const Meetings&) = delete;
  Meetings& operator=(const Meetings&) = delete;

  /// Collective: seconds of a one-way transfer, the minimum of several attempts, since other work only adds time; 0 if
  /// there is no shared memory. `looks`: number of polls before the core is yielded.
  double seconds(int looks) {
    constexpr int tries = 11, trips = 100;
    std::vector<double> ways(tries, 0.0);
    communicator_.barrier();
    for (double& way : ways) {
      if (ball_ == nullptr) break;
      const double begin = now();
      for (int trip = 0; trip < trips; ++trip) {
        if (communicator_.rank() == 0) {
          send();
          await(looks);
        } else {
          await(looks);
          send();
        }
      }
      way = (now() - begin) / (2 * trips);
    }
    double result = *std::min_element(ways.begin(), ways.end());
    communicator_.broadcast(&result, sizeof(result));
    return result;
  }

 private:
  using Ball = std::atomic<uint64_t>;
  static constexpr intptr_t line = 64;
  void send() { ball_->store(++number_, std::memory_order_release); }
  void await(int looks) {
    ++number_;
    for (int i = 1; ball_->load(std::memory_order_acquire) != number_; ++i) {
      if (i % looks == 0) std::this_thread::yield();
    }
  }

  Communicator& communicator_;
  MPI_Win window_ = MPI_WIN_NULL;
  Ball* ball_ = nullptr;
  uint64_t number_ = 0;
};

class Bench {
 public:
  Bench(int64_t largest, int rounds, Runtime& runtime)
      : communicator_(runtime.communicator()),
        stream_(runtime.stream()),
        rounds_(rounds),
        buffers_(largest, communicator_),
        meetings_(communicator_) {}

  void run(int64_t bytes, DType dtype);
  /// The methods below the table.
  void print_meetings() const;

 private:
  /// Seconds of one of `repetitions_` calls on the slowest rank.
  double timed(const std::function<void()>& work) {
    communicator_.barrier();
    const double begin = now();
    for (int64_t i = 0; i < repetitions_; ++i) work();
    double seconds = (now() - begin) / static_cast<double>(repetitions_);
    check(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    return seconds;
  }
  /// Bounds of this round's transfers.
  void measure_bounds(int64_t bytes);
  void reduce_scatter(int64_t bytes);
  void check_gather(const Tensor& buffer, std::span<const int64_t> cuts);
  void all_gather(int64_t bytes, DType dtype);
  void print(const char* what, int64_t bytes, DType dtype, const std::vector<double>& ours,
             const std::vector<double>& mpi, double moved);
  std::vector<int64_t> borders(int64_t elements) const {
    std::vector<int64_t> result;
    for (int64_t r = 0; r <= communicator_.size(); ++r) result.push_back(elements * r / communicator_.size());
    return result;
  }

  Communicator& communicator_;
  Stream& stream_;
  int rounds_;
  Buffers buffers_;
  Meetings meetings_;
  int64_t repetitions_ = 1;
  // By round:
  std::vector<double> rates_;  ///< rate of the triad, bytes per second of a rank, all at once
  std::vector<double> ways_;   ///< one-way time of a cache line, seconds
  // By round, of the whole table:
  std::vector<double> all_ways_, all_ways_with_yields_;
};

/// a = b + s c over thirds of a rank's memory, and a one-way transfer of a cache line.
void Bench::measure_bounds(int64_t bytes) {
  const int64_t n = bytes / 4;
  auto* a = static_cast<float*>(buffers_.result());
  const auto *b = static_cast<const float*>(buffers_.other()), *c = static_cast<const float*>(buffers_.exchanged());
  const double seconds = timed([&] {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 0.5F * c[i];
  });
  rates_.push_back(3.0 * static_cast<double>(bytes) / seconds);
  constexpr int many = 4096;  // after this many polls, a shared core is yielded
  ways_.push_back(meetings_.seconds(many));
  all_ways_.push_back(ways_.back());
  all_ways_with_yields_.push_back(meetings_.seconds(1));
}

void Bench::reduce_scatter(int64_t bytes) {
  const int64_t elements = bytes / 4;
  const std::vector<int64_t> cuts = borders(elements);
  const auto me = static_cast<size_t>(communicator_.rank());
  const int64_t own = cuts[me + 1] - cuts[me];
  const Tensor send(buffers_.exchanged(), DType::f32, {elements});
  const Tensor sum(buffers_.result(), DType::f32, {own});
  const std::vector<uint8_t> all(static_cast<size_t>(communicator_.size()), 1);
  std::vector<Tensor> received(all.size()), pieces(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (r == me || communicator_.reads_directly(rank)) continue;
    received[r] = Tensor(static_cast<char*>(buffers_.other()) + static_cast<int64_t>(r) * own * 4, DType::f32, {own});
  }
  std::vector<double> ours, mpi;
  for (int round = 0; round < rounds_; ++round) {
    measure_bounds(bytes);
    ours.push_back(timed([&] {
      Transfer transfer = communicator_.exchange_shards(send, cuts, received, all, stream_);
      transfer.wait(stream_);
      for (size_t r = 0; r < all.size(); ++r) {
        const void* direct = transfer.contribution(static_cast<int>(r));
        pieces[r] = r == me             ? send.rows(cuts[me], own)
                    : direct != nullptr ? Tensor(const_cast<void*>(direct), DType::f32, {own})
                                        : received[r];
      }
      add_in_order(sum, pieces, true, stream_);
      transfer.finish(stream_);
    }));
    const double expected = communicator_.size();  // sum of ones
    LLMTRAIN_CHECK(own == 0 || sum.as<float>()[own - 1] == static_cast<float>(expected), "the sum is wrong");
    mpi.push_back(timed([&] {
      check(MPI_Reduce_scatter_block(send.data, sum.data, static_cast<int>(elements / communicator_.size()), MPI_FLOAT,
                                     MPI_SUM, MPI_COMM_WORLD));
    }));
  }
  const double part = static_cast<double>(bytes) / communicator_.size();
  print("reduce-scatter", bytes, DType::f32, ours, mpi, part * (communicator_.size() + 1));
}

/// Once, before timing: checks that every rank's part arrives.
void Bench::check_gather(const Tensor& buffer, std::span<const int64_t> cuts) {
  auto* data = static_cast<unsigned char*>(buffer.data);
  const auto begin = [&](int rank) {
    return cuts[static_cast<size_t>(rank)] * static_cast<int64_t>(size_of(buffer.dtype));
  };
  const auto mark = [](int rank) { return static_cast<unsigned char>(rank + 1); };
  const int me = communicator_.rank();
  std::fill_n(data, buffer.bytes(), mark(-1));
  std::fill(data + begin(me), data + begin(me + 1), mark(me));
  communicator_.all_gather(buffer, cuts, stream_).finish(stream_);
  for (int r = 0; r < communicator_.size(); ++r) {
    LLMTRAIN_CHECK(std::all_of(data + begin(r), data + begin(r + 1), [&](auto x) { return x == mark(r); }),
                   "the gathered buffer is wrong");
  }
}

void Bench::all_gather(int64_t bytes, DType dtype) {
  const int64_t elements = bytes / static_cast<int64_t>(size_of(dtype));
  const std::vector<int64_t> cuts = borders(elements);
  const Tensor buffer(buffers_.exchanged(), dtype, {elements});
  check_gather(buffer, cuts);
  std::vector<double> ours, mpi;
  for (int round = 0; round < rounds_; ++round) {
    measure_bounds(bytes);
    ours.push_back(timed([&] { communicator_.all_gather(buffer, cuts, stream_).finish(stream_); }));
    mpi.push_back(timed([&] {
      check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data,
                          static_cast<int>(bytes / communicator_.size()), MPI_BYTE, MPI_COMM_WORLD));
    }));
  }
  const double part = static_cast<double>(bytes) / communicator_.size();
  print("all-gather", bytes, dtype, ours, mpi, 2 * part * (communicator_.size() - 1));
}

void Bench::print(const char* what, int64_t bytes, DType dtype, const std::vector<double>& ours,
                  const std::vector<double>& mpi, double moved) {
  std::vector<double> ratios, shares, shares_with_meetings;
  for (size_t i = 0; i < ours.size(); ++i) {
    ratios.push_back(mpi[i] / ours[i]);
    shares.push_back(moved / rates_[i] / ours[i]);
    shares_with_meetings.push_back((moved / rates_[i] + 2 * ways_[i]) / ours[i]);
  }
  const int size = communicator_.size();
  const double bus = static_cast<double>(bytes) * (size - 1) / size / 1e9;
  if (communicator_.rank() == 0) {
    fmt::print("| {} | {} | {:.2f} MiB | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.2f} | {} |\n", what, name_of(dtype),
               static_cast<double>(bytes) / 0x1p20, bus / median(ours), bus / median(mpi), median(ratios),
               median(rates_) / 1e9, median(shares),
               median(ways_) > 0 ? fmt::format("{:.2f}", median(shares_with_meetings)) : "");
  }
  rates_.clear();
  ways_.clear();
}

void Bench::print_meetings() const {
  if (communicator_.rank() != 0) return;
  if (all_ways_.empty() || median(all_ways_) <= 0) {
    fmt::print("\nRanks 0 and 1 do not read each other's memory: there are no meetings.\n");
    return;
  }
  const auto nanoseconds = [](const std::vector<double>& ways) {
    const auto [least, most] = std::minmax_element(ways.begin(), ways.end());
    return fmt::format("{:.0f} ns ({:.0f} to {:.0f})", median(ways) * 1e9, *least * 1e9, *most * 1e9);
  };
  fmt::print(
      "\nA meeting of two cores, a cache line's way from rank 0 to rank 1 or back: {}, a transfer has two of them. "
      "Where "
      "a rank yields its core between looks at the line, as transfers do after some hundred: {}.\n",
      nanoseconds(all_ways_), nanoseconds(all_ways_with_yields_));
}

void Bench::run(int64_t bytes, DType dtype) {
  std::fill_n(static_cast<float*>(buffers_.exchanged()), bytes / 4, 1.0F);
  repetitions_ = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  if (dtype == DType::f32) reduce_scatter(bytes);  // gradients travel in fp32 only
  all_gather(bytes, dtype);
}

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  using namespace llmtrain;
  const int64_t largest = (argc > 1 ? std::atoll(argv[1]) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (largest < 1 << 20 || rounds < 1) {
    fmt::print(stderr, "usage: mpirun -n RANKS collective_bench [largest MiB] [rounds]\n");
    return 64;
  }
  Runtime runtime(argc, argv);
  return runtime.guard([&] {
    runtime.start_device();
    const int64_t ranks = runtime.communicator().size();
    if (ranks == 1) throw UserError(ExitCode::command_line, "collective_bench needs several ranks: mpirun -n 2");
    Bench bench(largest, rounds, runtime);
    if (runtime.communicator().rank() == 0) {
      fmt::print("{}, {} ranks on {} nodes, {} threads each\n\n", mpi_library(), ranks,
                 runtime.communicator().node_count(), runtime.threads());
      fmt::print(
          "| what | type | whole buffer | llmtrain, GB/s | MPI, GB/s | ratio | triad of a rank, GB/s | of the bound | "
          "of the "
          "bound with meetings |\n"
          "|---|---|---|---|---|---|---|---|---|\n");
    }
    const int64_t step = 256 * 8 * ranks;
    for (int64_t bytes = 64 << 10; bytes <= largest; bytes *= 4) {
      const int64_t whole = (bytes + step - 1) / step * step;
      if (whole > largest) break;
      for (const DType dtype : {DType::f32, DType::bf16}) bench.run(whole, dtype);
    }
    bench.print_meetings();
    return 0;
  });
}
