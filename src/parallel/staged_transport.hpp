#pragma once
// Transfers between devices that cannot reach each other, as when several ranks share one GPU: through pinned host
// memory and MPI messages. Made for correctness, not speed: the host waits for its own copy at the start of a transfer,
// so that the messages are in progress from then on, as between hosts.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "parallel/communicator.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

/// Transport of tensors between the GPUs of a job; the same on every rank.
struct TransportChoice {
  bool staged = false;  ///< true: through host memory and MPI; false: by NCCL, which needs a GPU for each rank
  std::string note;     ///< reason for staging
};

/// `addresses`: device_address() of each rank; `machines`: boot_id() of each.
TransportChoice choose_transport(std::span<const std::string> addresses, std::span<const std::string> machines);

/// Formats version numbers in NCCL's encoding: "NCCL 2.28.9" and, if it differs, the version of the build.
std::string nccl_versions(int built_with, int found);

class StagedTransport {
 public:
  /// `job_ranks`: as for MpiRequests; they outlive the transport.
  explicit StagedTransport(MPI_Comm comm, std::span<const int> job_ranks = {});
  ~StagedTransport();
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  struct Slot;
  /// A transfer in a slot, which later ones may reuse once it has arrived.
  struct Ticket {
    Slot* slot;
    uint64_t sequence;
  };

  /// Allocates memory for transfers of this many bytes on the host; without it the first transfers allocate.
  void reserve(int64_t bytes);

  // The same as in Communicator. Arguments have been checked.
  Ticket all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream);
  Ticket exchange(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                  std::span<const uint8_t> contributes, Stream& stream);
  Ticket send_and_receive(std::span<const Communicator::Message> sends, std::span<const Communicator::Message> receives,
                          Stream& stream);
  bool arrived(const Ticket& ticket);
  /// Enqueues the copies of received data in the stream of the transfer's start.
  void wait(const Ticket& ticket, const Transfer::Meanwhile& meanwhile);
  /// Gives up a transfer: data that still arrives is dropped, as its destination may be gone.
  static void abandon(const Ticket& ticket);

 private:
  Slot& take(const char* operation, int64_t bytes, Stream& stream);
  static bool ends_soon(Slot& slot);
  void land(Slot& slot, const Transfer::Meanwhile& meanwhile);

  MPI_Comm comm_;
  int rank_ = 0;
  int job_rank_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0;
  std::vector<Tensor> places_;                           ///< destinations of the exchange that is starting
  std::vector<Communicator::Message> sends_, receives_;  ///< in host memory, of the messages that are starting
};

}  // namespace llmtrain
