#pragma once
// Messages between ranks. The device plane moves tensors (MPI on the host, NCCL on GPUs: communicator_mpi.cpp,
// communicator_nccl.cpp); the host plane moves small facts and is always MPI. Every call is collective.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// A transfer under way. Movable. wait() before what it brings is used, finish() before what it took is changed; both
/// may be called again.
class Transfer {
 public:
  /// Done again and again by a rank that waits for others, who may wait for it.
  using Meanwhile = std::function<void()>;

  Transfer();
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  void wait(Stream& stream, const Meanwhile& meanwhile = {});
  bool pending() const;  ///< whether wait() would wait
  /// After the wait() of an exchange, until release(): this rank's range of what `rank` contributed, in that rank's
  /// memory; null where it was received into its place.
  const void* piece(int rank) const;
  void release();
  void finish(Stream& stream, const Meanwhile& meanwhile = {});
  bool is_read() const;  ///< whether finish() would wait after a release()

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

  /// What the user should know of how tensors travel; mostly empty. The same on every rank.
  virtual std::string note() const { return {}; }
  /// The largest transfer that will come takes so many bytes on either end: what a transfer needs besides is allocated
  /// here, not in a step.
  virtual void reserve(int64_t /*bytes*/) {}

  // Memory of the node: where it is allocated, transfers between ranks of a node are reads of each other's buffers.
  /// Ranks of this node, this one included, that could read each other's memory.
  virtual int sharing_ranks() const { return 1; }
  /// Collective: why a node's ranks cannot share `bytes` each; the same on every rank, empty where they can.
  virtual std::string sharing_refusal(int64_t bytes) = 0;
  /// Collective, after sharing_refusal() had nothing to say: like a DeviceBuffer, until the last copy of the pointer is
  /// gone. While there is any, exchange_shards() takes no other buffers.
  virtual std::shared_ptr<void> allocate_shared(int64_t bytes) = 0;
  /// Whether this rank reads that one's contributions where they lie, see Transfer::piece().
  virtual bool reads_directly(int /*rank*/) const { return false; }

  // Device plane.
  /// In place: rank r's elements [borders[r], borders[r + 1]) of `buffer` go to everybody. borders has size() + 1
  /// entries.
  virtual Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) = 0;
  /// All-to-all of shards: sends elements [borders[j], borders[j + 1]) of `send` to each rank j (when this rank
  /// contributes) and receives this rank's own range from every contributing rank c into received[c] (one tensor per
  /// rank, of the own range's length; empty for the own rank, read `send` instead, and where reads_directly(c)).
  /// contributes[c] is the same on every rank.
  virtual Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders,
                                   std::span<const Tensor> received, std::span<const uint8_t> contributes,
                                   Stream& stream) = 0;
  /// Whether integers are added over the ranks without the host's help; the same on every rank.
  virtual bool sums_on_device() const { return size_ == 1; }
  /// In place, modulo 2^64: the sum of every rank's `integers` (i64). Where sums_on_device().
  virtual Transfer sum_on_device(const Tensor& /*integers*/, Stream& /*stream*/) { return {}; }

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

/// What moves tensors between GPUs, with its version: "NCCL 2.28.9"; empty where that is MPI. Needs no device.
std::string transfer_library();

}  // namespace llmtrain
