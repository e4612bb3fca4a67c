#include "parallel/staged_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "parallel/shard_messages.hpp"

namespace llmtrain {

namespace {

constexpr size_t slot_count = 4;  // two gathers and two exchanges of a step; further ones wait for the oldest

}  // namespace

TransportChoice choose_transport(std::span<const std::string> addresses, std::span<const std::string> machines) {
  LLMTRAIN_CHECK(addresses.size() == machines.size(), "every rank's GPU is on a machine");
  for (size_t r = 0; r < addresses.size(); ++r) {
    size_t first = 0;
    while (addresses[first] != addresses[r] || machines[first] != machines[r]) ++first;
    if (first == r) continue;
    return {true, fmt::format("ranks {} and {} share {}: tensors travel between all ranks through host memory and MPI, "
                              "which is slow. Start one rank per GPU (under Slurm: --gpus-per-task=1) to use NCCL",
                              first, r, addresses[r])};
  }
  return {};
}

std::string nccl_versions(int built_with, int found) {
  const auto text = [](int n) { return fmt::format("{}.{}.{}", n / 10000, n / 100 % 100, n % 100); };
  const std::string library = "NCCL " + text(found);
  return found == built_with ? library : fmt::format("{} (built with {})", library, text(built_with));
}

/// Slots are used in turn. Since the order of transfers is the same on every rank, a slot waits for the same transfer
/// everywhere.
struct StagedTransport::Slot {
  /// A copy from the pinned memory to the device.
  struct Arrival {
    void* device;
    const void* host;
    int64_t bytes;
  };

  Slot(MPI_Comm comm, std::span<const int> job_ranks) : requests(comm, max_message_bytes, job_ranks) {}
  char* data() const { return static_cast<char*>(memory.data()); }

  PinnedBuffer memory;
  MpiRequests requests;
  std::vector<Arrival> arrivals;
  Event passed;  ///< end of copies out of or into the memory
  Stream* stream = nullptr;
  bool travels = false;
  const char* operation = "";
  int64_t bytes = 0;
  uint64_t sequence = 0;
};

StagedTransport::StagedTransport(MPI_Comm comm, std::span<const int> job_ranks) : comm_(mpi_duplicate(comm)) {
  int size = 1;
  mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  job_rank_ = job_ranks.empty() ? rank_ : job_ranks[static_cast<size_t>(rank_)];
  places_.resize(static_cast<size_t>(size));
  for (size_t i = 0; i < slot_count; ++i) slots_.push_back(std::make_unique<Slot>(comm_, job_ranks));
}

StagedTransport::~StagedTransport() {
  for (auto& slot : slots_) {
    // leaked, because messages may still arrive in its memory
    if (slot->travels && !ends_soon(*slot)) static_cast<void>(slot.release());
  }
  MPI_Comm_free(&comm_);
}

/// Ends a transfer that was not waited for.
bool StagedTransport::ends_soon(Slot& slot) {
  if (std::uncaught_exceptions() > 0) return false;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  try {
    while (!slot.requests.test()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void StagedTransport::reserve(int64_t bytes) {
  for (const auto& slot : slots_) {
    if (!slot->travels && slot->memory.bytes() < bytes) slot->memory = PinnedBuffer(bytes);
  }
}

StagedTransport::Slot& StagedTransport::take(const char* operation, int64_t bytes, Stream& stream) {
  Slot& slot = *slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.travels) land(slot, {});
  slot.passed.synchronize();
  if (slot.memory.bytes() < bytes) slot.memory = PinnedBuffer(bytes);
  slot.arrivals.clear();
  slot.stream = &stream;
  slot.travels = true;
  slot.operation = operation;
  slot.bytes = bytes;
  slot.sequence = begin_collective();
  return slot;
}

StagedTransport::Ticket StagedTransport::all_gather(const Tensor& buffer, std::span<const int64_t> borders,
                                                    Stream& stream) {
  Slot& slot = take("all-gather", buffer.bytes(), stream);
  const Tensor copy(slot.data(), buffer.dtype, {buffer.numel()});
  const auto size = static_cast<int>(places_.size());
  for (size_t r = 0; r + 1 < borders.size(); ++r) {
    const ShardRange device = shard_range(buffer, borders, static_cast<int>(r));
    const ShardRange host = shard_range(copy, borders, static_cast<int>(r));
    if (static_cast<int>(r) % size == rank_) {
      copy_to_host(host.data, device.data, host.bytes, stream);
    } else if (host.bytes > 0) {
      slot.arrivals.push_back({device.data, host.data, host.bytes});
    }
  }
  slot.passed.record(stream);
  slot.passed.synchronize();
  each_segment(borders, size, [&](std::span<const int64_t> segment) {
    begin_gather(slot.requests, copy, segment, rank_, [](int) { return true; });
  });
  return {&slot, slot.sequence};
}

StagedTransport::Ticket StagedTransport::exchange(const Tensor& send, std::span<const int64_t> borders,
                                                  std::span<const Tensor> received,
                                                  std::span<const uint8_t> contributes, Stream& stream) {
  int64_t bytes = 0;
  for (const Tensor& place : received) bytes += place.empty() ? 0 : place.bytes();
  const bool sends = contributes[static_cast<size_t>(rank_)] != 0;
  Slot& slot = take("exchange", bytes + (sends ? send.bytes() : 0), stream);
  char* at = slot.data();
  std::fill(places_.begin(), places_.end(), Tensor());
  for (size_t r = 0; r < received.size(); ++r) {
    if (contributes[r] == 0 || received[r].empty() || static_cast<int>(r) == rank_) continue;
    places_[r] = Tensor(at, received[r].dtype, {received[r].numel()});
    slot.arrivals.push_back({received[r].data, at, received[r].bytes()});
    at += received[r].bytes();
  }
  const Tensor copy(sends ? at : nullptr, send.dtype, {send.numel()});
  for (int r = 0; sends && r < static_cast<int>(received.size()); ++r) {
    if (r == rank_) continue;
    const ShardRange host = shard_range(copy, borders, r);
    copy_to_host(host.data, shard_range(send, borders, r).data, host.bytes, stream);
  }
  slot.passed.record(stream);
  slot.passed.synchronize();
  if (sends) traffic().receive(job_rank_, shard_range(send, borders, rank_).bytes);
  begin_exchange(slot.requests, copy, borders, places_, contributes, rank_, [](int) { return true; });
  return {&slot, slot.sequence};
}

StagedTransport::Ticket StagedTransport::send_and_receive(std::span<const Communicator::Message> sends,
                                                          std::span<const Communicator::Message> receives,
                                                          Stream& stream) {
  int64_t bytes = 0;
  for (const auto& messages : {sends, receives}) {
    for (const Communicator::Message& message : messages) bytes += message.data.bytes();
  }
  Slot& slot = take("exchange", bytes, stream);
  char* at = slot.data();
  const auto place = [&](const Communicator::Message& message) {
    const Tensor host(at, message.data.dtype, {message.data.numel()});
    at += host.bytes();
    return Communicator::Message{host, message.rank};
  };
  sends_.clear();
  receives_.clear();
  for (const Communicator::Message& message : receives) {
    receives_.push_back(place(message));
    slot.arrivals.push_back({message.data.data, receives_.back().data.data, message.data.bytes()});
  }
  for (const Communicator::Message& message : sends) {
    sends_.push_back(place(message));
    copy_to_host(sends_.back().data.data, message.data.data, message.data.bytes(), stream);
  }
  slot.passed.record(stream);
  slot.passed.synchronize();
  begin_messages(slot.requests, sends_, receives_);
  return {&slot, slot.sequence};
}

bool StagedTransport::arrived(const Ticket& ticket) {
  return ticket.slot->sequence != ticket.sequence || !ticket.slot->travels || ticket.slot->requests.test();
}

void StagedTransport::wait(const Ticket& ticket, const Transfer::Meanwhile& meanwhile) {
  if (ticket.slot->sequence == ticket.sequence && ticket.slot->travels) land(*ticket.slot, meanwhile);
}

void StagedTransport::abandon(const Ticket& ticket) {
  if (ticket.slot->sequence == ticket.sequence && ticket.slot->travels) ticket.slot->arrivals.clear();
}

void StagedTransport::land(Slot& slot, const Transfer::Meanwhile& meanwhile) {
  std::optional<CollectiveScope> scope;
  if (!activity().collective.inside.load()) scope.emplace(slot.operation, slot.bytes, slot.sequence);
  while (!slot.requests.test()) {
    if (meanwhile) meanwhile();
    std::this_thread::yield();
  }
  if (!slot.travels) return;  // it has already arrived
  slot.travels = false;
  for (const Slot::Arrival& a : slot.arrivals) copy_to_device(a.device, a.host, a.bytes, *slot.stream);
  slot.passed.record(*slot.stream);
}

}  // namespace llmtrain
