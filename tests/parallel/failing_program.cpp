// A job whose ranks end in the way that the first argument names; job_ends.sh runs it under mpirun.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "parallel/job/runtime.hpp"

namespace {

using namespace llmtrain;

std::atomic<bool> terminated = false;

/// Like the program itself: the signal to end is handled later, or never.
void catch_termination() {
  std::signal(SIGTERM, [](int) { terminated = true; });
}

/// Works for `seconds`; `moves`: and reports progress.
void work(double seconds, bool moves) {
  const SectionScope section(Section::step);
  for (double done = 0; done < seconds; done += 0.02) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (moves) report_progress();
  }
}

/// The others of `rank` wait for it in a collective, for ever if the job does not end.
template <class F>
int on_rank(Communicator& communicator, int rank, const F& failure) {
  if (communicator.rank() == rank) failure();
  communicator.barrier();
  return 0;
}

/// Buffers of the gathers: in shared memory if there is room.
class Gathered {
 public:
  explicit Gathered(Communicator& communicator) : bytes_(1024 * communicator.size()), own_(bytes_) {
    if (communicator.sharing_refusal(bytes_).empty()) shared_ = communicator.allocate_shared(bytes_);
    for (int64_t r = 0; r <= communicator.size(); ++r) borders_.push_back(256 * r);
  }
  void gather(Communicator& communicator) const {
    Stream stream;
    const Tensor buffer(shared_ != nullptr ? shared_.get() : own_.data(), DType::f32, {bytes_ / 4});
    communicator.all_gather(buffer, borders_, stream).finish(stream);
    stream.synchronize();
  }

 private:
  int64_t bytes_;
  DeviceBuffer own_;
  std::shared_ptr<void> shared_;
  std::vector<int64_t> borders_;
};

/// A kernel whose result is not checked.
struct OneKernel {
  DeviceBuffer buffer{1024};
  Stream stream;
  void run() {
    Event done;
    fill(Tensor(buffer.data(), DType::f32, {256}), 1, stream);
    done.record(stream);
    (void)done.reached();
  }
};

/// The others of `rank` wait for it in a gather.
template <class F>
int before_gather(Communicator& communicator, const std::optional<Gathered>& gathered, int rank, const F& failure) {
  if (communicator.rank() == rank) failure();
  gathered.value().gather(communicator);
  return 0;
}

int run(Communicator& c, const std::string& way, const std::optional<Gathered>& gathered) {
  const int last = c.size() - 1;
  const std::map<std::string, std::function<int()>> ways = {
      {"fine", [&] { return on_rank(c, last, [] {}); }},
      {"stopped", [] { return 75; }},
      {"one_returns_75", [&] { return c.rank() == last ? 75 : 0; }},
      {"exception", [&] { return on_rank(c, last, [] { throw Error("the disk is on fire"); }); }},
      {"not_an_exception", [&] { return on_rank(c, last, [] { throw 7; }); }},
      {"bad_alloc", [&] { return on_rank(c, last, [] { throw std::bad_alloc(); }); }},
      {"terminate", [&] { return on_rank(c, last, [] { std::terminate(); }); }},
      {"thread", [&] { return on_rank(c, last, [] { std::thread([] { throw Error("in a thread"); }).join(); }); }},
      {"exit", [&] { return on_rank(c, last, [] { std::exit(0); }); }},
      {"user_one",
       [&] { return on_rank(c, last, [] { throw UserError(ExitCode::missing_input, "corpus.txt is missing"); }); }},
      {"user_all", []() -> int { throw UserError(ExitCode::deck, "deck.ini:3: run.sed: unknown key"); }},
      {"user_together",
       [&] {
         throw_on_all_ranks(c, [&] {
           if (c.rank() == 0) throw UserError(ExitCode::bad_content, "first file is empty");
           if (c.rank() == last) throw UserError(ExitCode::deck, "second key is wrong");
         });
         return 0;
       }},
      {"killed", [&] { return on_rank(c, last, [] { std::raise(SIGKILL); }); }},
      {"segfault", [&] { return on_rank(c, last, [] { std::raise(SIGSEGV); }); }},
      {"crash_actions",
       [] {
         for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
           if (std::signal(signal, SIG_DFL) != SIG_DFL) throw Error(fmt::format("signal {} is handled", signal));
         }
         return 0;
       }},
      {"stopped_process", [&] { return on_rank(c, last, [] { std::raise(SIGSTOP); }); }},
      {"two_stopped",
       [&] {
         if (c.rank() == 0) std::raise(SIGSTOP);
         return on_rank(c, last, [] { std::raise(SIGSTOP); });
       }},
      {"stuck", [&] { return on_rank(c, last, [] { work(60, false); }); }},
      {"stuck_before_gather", [&] { return before_gather(c, gathered, last, [] { work(60, false); }); }},
      {"stopped_before_gather", [&] { return before_gather(c, gathered, last, [] { std::raise(SIGSTOP); }); }},
      {"killed_before_gather", [&] { return before_gather(c, gathered, last, [] { std::raise(SIGKILL); }); }},
      {"gathers",  // the environment makes one of them fail, see tests/emulated
       [&] {
         const SectionScope section(Section::step);
         for (int i = 0; i < 10; ++i) gathered.value().gather(c);
         return 0;
       }},
      {"gathers_after_failure",  // on the thread that met it, and on another
       [&] {
         const auto gather = [&] {
           try {
             gathered.value().gather(c);
           } catch (const std::exception& error) {
             fmt::print("{}\n", error.what());
           }
         };
         for (int i = 0; i < 2; ++i) gather();
         std::thread(gather).join();
         return 0;
       }},
      {"kernels",
       [&] {
         const SectionScope section(Section::step);
         const DeviceBuffer buffer(1024);
         Stream stream;
         for (int i = 0; i < 10; ++i) {
           fill(Tensor(buffer.data(), DType::f32, {256}), 1, stream);
           stream.synchronize();
         }
         return on_rank(c, last, [] {});
       }},
      {"kernels_alone",  // only the next kernel reports their errors
       [&] {
         OneKernel kernel;
         for (int i = 0; i < 10; ++i) kernel.run();
         return 0;
       }},
      {"product_behind_kernel",
       [&] {
         const DeviceBuffer x(1024), w(1024), y(1024);
         OneKernel kernel;
         const auto product = [&] {
           linear_forward(Tensor(y.data(), DType::f32, {16, 16}), Tensor(x.data(), DType::f32, {16, 16}),
                          Tensor(w.data(), DType::f32, {16, 16}), {}, kernel.stream);
         };
         product();  // the library allocates
         kernel.run();
         product();
         kernel.stream.synchronize();
         return on_rank(c, last, [] {});
       }},
      {"gather_behind_kernel",
       [&] {
         OneKernel().run();
         gathered.value().gather(c);
         return 0;
       }},
      {"reads_results",
       [&] {
         const SectionScope section(Section::step);
         const DeviceBuffer buffer(1024);
         Stream stream;
         std::vector<float> result(256);
         for (int i = 0; i < 10; ++i) {
           fill(Tensor(buffer.data(), DType::f32, {256}), 1, stream);
           copy_to_host(result.data(), buffer.data(), 1024, stream);
         }
         return on_rank(c, last, [] {});
       }},
      {"stuck_in_file",
       [&] {
         return on_rank(c, last, [] {
           const FileCall call;
           work(60, false);
         });
       }},
      {"stuck_writer",
       [&] {
         return on_rank(c, last, [] {
           std::thread writer([] {
             const WriterScope scope;
             work(60, false);
           });
           work(20, true);
           const WriterWait wait;
           writer.join();
         });
       }},
      {"nobody_moves",
       [&] {
         if (c.rank() == last) c.barrier();
         return on_rank(c, last, [&] { c.barrier(); });
       }},
      {"writer_waits_for_peers",  // for work of the device behind a transfer
       [&] {
         if (c.rank() == last) {
           std::thread([] {
             const WriterScope scope;
             const DeviceWait wait;
             work(60, false);
           }).detach();
           c.barrier();
         }
         return on_rank(c, last, [&] { c.barrier(); });
       }},
      {"slow", [&] { return on_rank(c, last, [] { work(8, true); }); }},
      {"slow_writer",
       [&] {
         return on_rank(c, last, [] {
           std::thread writer([] {
             const WriterScope scope;
             work(8, true);
           });
           const WriterWait wait;
           writer.join();
         });
       }},
      {"as_slow_as_before",  // four times its longest work item so far
       [&] {
         return on_rank(c, last, [] {
           work(0.5, false);
           report_progress();
           work(2, false);
         });
       }},
  };
  return ways.at(way)();
}

}  // namespace

int main(int argc, char** argv) {
  Runtime runtime(argc, argv);
  if (argc < 2) return 64;
  const std::string way = argv[1];
  if (way == "unguarded") throw Error("nobody guards this");
  catch_termination();
  return runtime.guard([&] {
    runtime.start_device();
    std::optional<Gathered> gathered;  // allocated before the deadlines start, since it takes a while on a busy machine
    if (way.find("gather") != std::string::npos) gathered.emplace(runtime.communicator());
    // Second argument: a folder for the watchdog, in which a rank is lost after 2 s, stuck after 1 s, or 2 s while
    // reading files; third: a factor on these.
    const double slack = argc > 3 ? std::atof(argv[3]) : 1;
    if (argc > 2) {
      const WatchdogLimits limits = {2 * slack, slack, 2 * slack};
      runtime.watch(
          {.folder = argv[2], .lost_nodes = "", .limits = limits, .ending = [] { return terminated.load(); }});
    }
    return run(runtime.communicator(), way, gathered);
  });
}
