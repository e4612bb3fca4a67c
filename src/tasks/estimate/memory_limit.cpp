#include "tasks/estimate/memory_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "core/error.hpp"
#include "core/machine.hpp"
#include "core/number_text.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"
#include "kernels/matmul.hpp"
#include "parallel/job/runtime.hpp"
#include "params/offload/offload_file.hpp"
#include "train/step_profile.hpp"

namespace llmtrain {

void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where) {
  const auto text = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
  const std::string remedy =
      "Use memory.recompute = block, more ranks with a higher parallel.zero, a smaller batch.micro or "
      "batch.sequence_length, or a smaller model (--estimate prints the memory by category)";
  if (limit > 0 && bytes > limit + between_starts) {
    throw UserError(ExitCode::deck, fmt::format("{}: the run needs {} per rank, and the limit is {}. {}", where,
                                                text(bytes), text(limit), remedy));
  }
  if (bytes > share) {
    throw UserError(ExitCode::deck,
                    fmt::format("not enough memory: the run needs {} per rank, and a rank's share of the {} is {}. {}",
                                text(bytes), device_memory_is_host() ? "node" : "GPU", text(share), remedy));
  }
}

int64_t ranks_of_device(Communicator& communicator) {
  if (device_memory_is_host()) return communicator.node_size();
  const std::string mine = device_identity();
  return std::max<int64_t>(std::ranges::count(communicator.gather_all(mine), mine), 1);
}

namespace {

/// Bytes that a rank needs, and its share of the device: those that decide, for all ranks alike.
struct RankMemory {
  int64_t needed, share;
};

RankMemory rank_memory(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const int64_t ranks = ranks_of_device(communicator);
  // On a GPU a profile is omitted if it does not fit.
  const bool profiles = device_memory_is_host() && limits.profiled;
  const int64_t profile = profiles ? limits_memory_bytes(*limits.profiled, ranks) : 0;
  // The largest plan, the largest process and the smallest share decide, for all ranks alike. Available memory already
  // excludes what this process uses. Only a rank's own share, not the process of another rank, limits its plan.
  std::array<int64_t, 3> memory = {plan.bytes() + matmul_workspace_bytes() + profile, device_context_bytes(ranks),
                                   -(device_memory().available / ranks - device_reserve_bytes())};
  communicator.maximum(memory);
  return {memory[0] + memory[1], memory[1] - memory[2]};
}

}  // namespace

void check_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const RankMemory memory = rank_memory(plan, limits, communicator);
  throw_on_all_ranks(communicator, [&] { check_memory(memory.needed, limits.limit, memory.share, limits.where); });
}

bool fits_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const RankMemory memory = rank_memory(plan, limits, communicator);
  return memory.needed <= memory.share && (limits.limit == 0 || memory.needed <= limits.limit + between_starts);
}

void check_host_memory(int64_t bytes, Communicator& communicator) {
  if (device_memory_is_host()) return;
  std::array<int64_t, 2> memory = {bytes, -(host_memory("/").available / communicator.node_size())};
  communicator.maximum(memory);
  const int64_t most = memory[0], share = -memory[1];
  throw_on_all_ranks(communicator, [&] {
    if (most <= share) return;
    const auto text = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
    throw UserError(ExitCode::deck,
                    fmt::format("not enough memory: the offloaded state needs {} per rank in host memory, and a rank's "
                                "share of the node is {}. Use more ranks on more nodes, fewer ranks per node, or "
                                "parallel.offload_optimizer = nvme (--estimate prints the memory by category)",
                                text(most), text(share)));
  });
}

void reserve_disk(OffloadStore& store, const std::string& folder, const std::string& where,
                  Communicator& communicator) {
  // The ranks of a node share its disk: they report one error, with the sum.
  const std::string host = host_name(), own = fmt::format("{} {}", store.disk_bytes(), host);
  int64_t of_node = 0;
  for (const std::string& other : communicator.gather_all(own)) {
    std::istringstream text(other);
    int64_t bytes = 0;
    std::string name;
    text >> bytes >> name;
    if (name == host) of_node += bytes;
  }
  const std::string place = where + (communicator.node_count() > 1 ? " on " + host : "");
  throw_on_all_ranks(communicator, [&] { check_offload_folder(folder, of_node, place); });
  throw_on_all_ranks(communicator, [&] {
    try {
      store.reserve_disk();
    } catch (const UserError& error) {  // failures that could not be checked before
      throw UserError(error.code(), place + ": " + error.what());
    }
  });
}

}  // namespace llmtrain
