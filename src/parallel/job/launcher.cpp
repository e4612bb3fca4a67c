#include "parallel/job/launcher.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "parallel/communicator.hpp"

namespace llmtrain {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The positive number that `text` begins with (OMP_NUM_THREADS may be a list), else 0.
int leading_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ends_well = end == text.data() + text.size() || *end == ',';
  return error == std::errc() && ends_well && value > 0 ? value : 0;
}

int bound_core_count() {
  constexpr int max_cores = 1 << 16;
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  const std::unique_ptr<cpu_set_t, Free> set(CPU_ALLOC(max_cores));
  const size_t bytes = CPU_ALLOC_SIZE(max_cores);
  if (!set || sched_getaffinity(0, bytes, set.get()) != 0) return 1;
  return std::max(1, CPU_COUNT_S(bytes, set.get()));
}

/// Number of cores in the kernel's list notation, "0-3,8"; 0 if it is none.
int listed_cores(const std::string& text) {
  int count = 0;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    int first = 0, last = 0;
    const char* end = item.data() + item.size();
    const auto [rest, error] = std::from_chars(item.data(), end, first);
    if (error != std::errc()) return 0;
    last = first;
    if (rest != end && *rest == '-' && std::from_chars(rest + 1, end, last).ec != std::errc()) return 0;
    if (last < first) return 0;
    count += last - first + 1;
  }
  return count;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The control group of this process (version 2): the launcher's binding does not hide its limits.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

/// Cores that a container or batch system grants; a huge number where it does not limit them.
int granted_cores() {
  int granted = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  const auto limit = [&](int cores) {
    if (cores > 0) granted = std::min(granted, cores);
  };
  for (const std::string& group : {control_group(), std::string("/")}) {
    const std::string folder = "/sys/fs/cgroup" + group + "/";
    limit(listed_cores(first_line(folder + "cpuset.cpus.effective")));
    std::istringstream quota(first_line(folder + "cpu.max"));
    int64_t microseconds = 0, period = 0;
    if (quota >> microseconds >> period && period > 0) {
      limit(static_cast<int>(std::max<int64_t>(1, microseconds / period)));
    }
  }
  limit(leading_number(environment("SLURM_CPUS_ON_NODE")));
  return granted;
}

std::string plural(int n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

}  // namespace

void set_mpi_defaults() {
  const auto set = [](const char* name, const char* value) { setenv(name, value, 0); };
  // Open MPI 5 asks the kernel for routes to its own IPv6 addresses and does not understand the answer.
  set("OMPI_MCA_reachable", "weighted");
  set("UCX_HANDLE_ERRORS", "none");  // for the time before let_crashes_kill(), where libucs is loaded by MPI_Init
  // The ranks of a node use all its cores: one that spins in MPI takes the core that a rank it waits for, or anything
  // else on the machine, needs (measured on two busy cores: 11 times longer). Alone on its core it loses nothing.
  set("OMPI_MCA_mpi_yield_when_idle", "1");
  // Open MPI 5 fails in MPI_Init without a home directory.
  const passwd* user = std::getenv("HOME") == nullptr ? getpwuid(getuid()) : nullptr;
  set("HOME", user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/");
}

void let_crashes_kill() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, SIG_DFL);
#endif
}

ThreadFacts find_thread_facts(int ranks_on_node) {
  ThreadFacts facts;
  facts.requested = leading_number(environment("OMP_NUM_THREADS"));
  facts.cpus_per_task = leading_number(environment("SLURM_CPUS_PER_TASK"));
  facts.bound_cores = bound_core_count();
  facts.node_cores = std::max(granted_cores(), facts.bound_cores);
  facts.ranks_on_node = std::max(1, ranks_on_node);
  facts.slurm_step = !environment("SLURM_STEP_ID").empty() && environment("OMPI_COMM_WORLD_LOCAL_SIZE").empty();
  return facts;
}

ThreadChoice choose_threads(const ThreadFacts& facts) {
  int share = std::max(1, facts.node_cores / std::max(1, facts.ranks_on_node));
  std::string reason =
      fmt::format("{} among {} of this node", plural(facts.node_cores, "core"), plural(facts.ranks_on_node, "rank"));
  if (facts.requested > 0) {
    share = facts.requested;
    reason = fmt::format("OMP_NUM_THREADS={}", share);
  } else if (facts.cpus_per_task > 0) {
    share = facts.cpus_per_task;
    reason = fmt::format("SLURM_CPUS_PER_TASK={}", share);
  }
  if (share > max_threads) {
    share = max_threads;
    reason += fmt::format(" (a rank takes {} at most: start more ranks)", share);
  }
  const int bound = std::max(1, facts.bound_cores);
  if (bound >= share) return {share, reason, false};
  const std::string remedy = facts.slurm_step ? fmt::format("srun --cpus-per-task={}", share) : "mpirun --bind-to none";
  const std::string loss =
      fmt::format("{}, but this rank is bound to {}: start it with {}", reason, plural(bound, "core"), remedy);
  return {facts.requested > 0 ? share : bound, loss, true};
}

int worker_threads(const Communicator& communicator) {
  return std::min(choose_threads(find_thread_facts(communicator.node_size())).threads, 256);
}

}  // namespace llmtrain
