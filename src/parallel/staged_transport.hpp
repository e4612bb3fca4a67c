#pragma once
// Transfers between devices that cannot reach each other, as when several ranks share one GPU: by way of pinned host
// memory and MPI messages. Made for correctness: the host waits for its own copy at the beginning of a transfer, so
// that the messages are under way from there on, as between hosts.

#include <memory>
#include <vector>

#include "device/device.hpp"
#include "parallel/communicator.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

class StagedTransport {
 public:
  explicit StagedTransport(MPI_Comm comm);
  ~StagedTransport();
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  struct Slot;
  /// A transfer in a slot, which later ones may take once it has arrived.
  struct Ticket {
    Slot* slot;
    uint64_t sequence;
  };

  /// Memory for transfers of so many bytes on the host; without it the first ones allocate.
  void reserve(int64_t bytes);

  // As in Communicator. Arguments have been checked.
  Ticket all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream);
  Ticket exchange(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                  std::span<const uint8_t> contributes, Stream& stream);
  bool arrived(const Ticket& ticket);
  /// What arrives is copied behind what is in the stream that the transfer began on.
  void wait(const Ticket& ticket, const Transfer::Meanwhile& meanwhile);
  /// Nobody will wait for it: what still arrives is dropped, as its place may be gone.
  static void abandon(const Ticket& ticket);

 private:
  Slot& take(const char* operation, int64_t bytes, Stream& stream);
  static bool ends_soon(Slot& slot);
  void land(Slot& slot, const Transfer::Meanwhile& meanwhile);

  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0;
  std::vector<Tensor> places_;  ///< of the exchange being started
};

}  // namespace llmtrain
