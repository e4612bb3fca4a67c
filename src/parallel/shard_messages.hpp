#pragma once
// Messages of data communication over MPI: which ranges go to which rank.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor.hpp"
#include "parallel/communicator.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

// Checks and ranges that data communication over MPI and NCCL share.

/// Bytes of one rank's shard inside a flat buffer.
struct ShardRange {
  void* data;
  int64_t bytes;
};
ShardRange shard_range(const Tensor& buffer, std::span<const int64_t> borders, int rank);

/// Checks borders: one more than ranks, or than ranks times segments, ascending, within the buffer.
void check_borders(const Tensor& buffer, std::span<const int64_t> borders, int size);

/// Calls visit(borders) for the size + 1 borders of each segment.
template <class Visit>
void each_segment(std::span<const int64_t> borders, int size, const Visit& visit) {
  const auto ranks = static_cast<size_t>(size);
  for (size_t at = 0; at + 1 < borders.size(); at += ranks) visit(borders.subspan(at, ranks + 1));
}

/// Checks that there is one flag per rank, and a tensor of the own range's length for every other rank that
/// contributes.
void check_exchange(std::span<const int64_t> borders, std::span<const Tensor> received,
                    std::span<const uint8_t> contributes, int rank, DType dtype);

/// True if messages travel between this rank and the other.
using ByMessage = std::function<bool(int rank)>;

/// Starts the messages of an all-gather in place: see Communicator::all_gather().
void begin_gather(MpiRequests& requests, const Tensor& buffer, std::span<const int64_t> borders, int rank,
                  const ByMessage& by_message);

/// Messages of a gather between nodes, each of one rank's shards in all segments. Those of two ranks arrive in order.
class UnitShards {
 public:
  UnitShards(const Tensor& buffer, std::span<const int64_t> borders, int size, int64_t nodes);
  // `parts` is memory for the call.
  void send(MpiRequests& requests, int owner, int to, std::vector<MpiRequests::Part>& parts) const;
  void receive(MpiRequests& requests, int owner, std::vector<MpiRequests::Part>& parts) const;

 private:
  bool collect(int owner, std::vector<MpiRequests::Part>& parts) const;

  const Tensor& buffer_;
  std::span<const int64_t> borders_;
  int size_;
  int64_t nodes_;
};

/// Starts the messages of Communicator::send_and_receive().
void begin_messages(MpiRequests& requests, std::span<const Communicator::Message> sends,
                    std::span<const Communicator::Message> receives);

/// Starts the messages of an exchange: see Communicator::exchange_shards().
void begin_exchange(MpiRequests& requests, const Tensor& send, std::span<const int64_t> borders,
                    std::span<const Tensor> received, std::span<const uint8_t> contributes, int rank,
                    const ByMessage& by_message);

}  // namespace llmtrain
