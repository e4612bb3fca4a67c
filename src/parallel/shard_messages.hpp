#pragma once
// Messages of data communication over MPI: which ranges go to which rank.

#include <functional>
#include <span>

#include "core/tensor.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

/// True if messages travel between this rank and the other.
using ByMessage = std::function<bool(int rank)>;

/// Starts the messages of an all-gather in place: see Communicator::all_gather().
void begin_gather(MpiRequests& requests, const Tensor& buffer, std::span<const int64_t> borders, int rank,
                  const ByMessage& by_message);

/// Starts the messages of an exchange: see Communicator::exchange_shards().
void begin_exchange(MpiRequests& requests, const Tensor& send, std::span<const int64_t> borders,
                    std::span<const Tensor> received, std::span<const uint8_t> contributes, int rank,
                    const ByMessage& by_message);

}  // namespace llmtrain
