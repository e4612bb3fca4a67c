#pragma once
// The messages of the device plane where tensors travel between ranks by MPI: which ranges go where.

#include <functional>
#include <span>

#include "core/tensor.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {

/// Whether messages go between this rank and that one.
using ByMessage = std::function<bool(int rank)>;

/// Begins the messages of an all-gather in place: see Communicator::all_gather().
void begin_gather(MpiRequests& requests, const Tensor& buffer, std::span<const int64_t> borders, int rank,
                  const ByMessage& by_message);

/// Begins those of an exchange: see Communicator::exchange_shards().
void begin_exchange(MpiRequests& requests, const Tensor& send, std::span<const int64_t> borders,
                    std::span<const Tensor> received, std::span<const uint8_t> contributes, int rank,
                    const ByMessage& by_message);

}  // namespace llmtrain
