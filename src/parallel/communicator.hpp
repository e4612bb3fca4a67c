#pragma once
// Messages between ranks. The device plane moves tensors (MPI on the host, NCCL on GPUs: communicator_mpi.cpp,
// communicator_nccl.cpp); the host plane moves small facts and is always MPI. Every call is collective.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// A transfer under way. Movable; wait() before the buffers are used again; waiting twice is fine.
class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  void wait(Stream& stream);
  bool pending() const;

  struct State;
  explicit Transfer(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  int node_rank() const { return node_rank_; }  ///< rank among the ranks of this node
  int node_size() const { return node_size_; }
  int node_count() const { return node_count_; }

  // Device plane.
  /// In place: rank r's elements [borders[r], borders[r + 1]) of `buffer` go to everybody. borders has size() + 1
  /// entries.
  virtual Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) = 0;
  /// All-to-all of shards: sends elements [borders[j], borders[j + 1]) of `send` to each rank j (when this rank
  /// contributes) and receives this rank's own range from every contributing rank c into received[c] (one tensor per
  /// rank, of the own range's length; the own slot may be empty: read `send` instead). contributes[c] is the same on
  /// every rank.
  virtual Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders,
                                   std::span<const Tensor> received, std::span<const uint8_t> contributes,
                                   Stream& stream) = 0;

  // Host plane.
  virtual void broadcast(void* data, int64_t bytes, int root = 0) = 0;
  virtual void broadcast(std::string& text, int root = 0) = 0;
  virtual void sum(std::span<int64_t> values) = 0;
  virtual void sum(std::span<uint64_t> values) = 0;  ///< modulo 2^64
  virtual void maximum(std::span<int64_t> values) = 0;
  virtual void sum(ExactSum& value) = 0;
  /// Every rank's bytes, in rank order (lengths may differ), on every rank.
  virtual std::vector<std::string> gather_all(const std::string& mine) = 0;
  virtual void barrier() = 0;

 protected:
  int rank_ = 0, size_ = 1, node_rank_ = 0, node_size_ = 1, node_count_ = 1;
};

/// The communicator of this build over all ranks of the job.
std::unique_ptr<Communicator> make_communicator();

}  // namespace llmtrain
