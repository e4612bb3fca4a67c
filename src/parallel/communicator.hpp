#pragma once
// Communication between ranks. Data communication moves tensors (MPI on the host, NCCL on GPUs: communicator_mpi.cpp,
// communicator_nccl.cpp); control communication moves small values and always uses MPI. Every call is collective.

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

/// A transfer in progress. Movable. Call wait() before you use the received data, and finish() before you change the
/// sent data; both may be called again.
class Transfer {
 public:
  /// Function that a waiting rank calls repeatedly, since others may wait for it.
  using Meanwhile = std::function<void()>;

  Transfer();
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  void wait(Stream& stream, const Meanwhile& meanwhile = {});
  bool pending() const;  ///< true if wait() would wait
  /// Valid after the wait() of an exchange, until release(): this rank's range of the contribution of `rank`, in that
  /// rank's memory; null where it was received into the caller's tensor.
  const void* contribution(int rank) const;
  void release();
  void finish(Stream& stream, const Meanwhile& meanwhile = {});
  bool is_read() const;  ///< true if finish() would wait after a release()

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
  /// Ranks of every node but the last, which may have fewer; 0 if ranks are not numbered node by node.
  int ranks_per_node() const { return ranks_per_node_; }

  /// ranks_per_node() where the ranks of a node can add gradients before these leave the node: with share_in_node() on
  /// the host, by messages on GPUs. Else 0.
  virtual int adding_ranks_per_node() const { return 0; }

  /// Collective: the communicator of the ranks that give the same number, in their order. It lives as long as this one:
  /// an error that unwinds one rank must not wait for the others, as its destructor does.
  Communicator& group(int number) { return *groups_.emplace_back(make_group(number)); }
  /// Number in the whole job of a rank of this communicator.
  int job_rank(int rank) const { return job_ranks_.empty() ? rank : job_ranks_[static_cast<size_t>(rank)]; }

  /// Note for the user on how tensors travel; usually empty. The same on every rank.
  virtual std::string note() const { return {}; }
  /// Announces the largest transfer in bytes on either end, so that its buffers are allocated here, not in a step.
  virtual void reserve(int64_t /*bytes*/) {}

  // Memory of the node. Ranks of a node transfer between buffers allocated here by reading each other's buffers
  // directly.
  /// Number of ranks of this node, this one included, that could read each other's memory.
  virtual int sharing_ranks() const { return 1; }
  /// Collective. Returns why a node's ranks cannot share `bytes` each; the same on every rank, empty where they can.
  virtual std::string sharing_refusal(int64_t bytes) = 0;
  /// Collective, after sharing_refusal() returned empty. The memory is like that of a DeviceBuffer and lives until the
  /// last copy of the pointer is gone. While there is any, exchange_shards() accepts no other buffers.
  virtual std::shared_ptr<void> allocate_shared(int64_t bytes) = 0;
  /// True if this rank reads the contributions of `rank` directly, see Transfer::contribution().
  virtual bool reads_directly(int /*rank*/) const { return false; }

  // Data communication.
  /// All-gather in place of one or more segments that follow each other: for each segment i, sends rank r's elements
  /// [borders[i * size() + r], borders[i * size() + r + 1]) of `buffer` to every rank.
  virtual Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) = 0;
  /// All-to-all of shards: sends elements [borders[j], borders[j + 1]) of `send` to each rank j (when this rank
  /// contributes) and receives this rank's own range from every contributing rank c into received[c]. `received` has
  /// one tensor per rank, of the own range's length; it is empty for the own rank (read `send` instead) and where
  /// reads_directly(c). contributes[c] is the same on every rank.
  virtual Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders,
                                   std::span<const Tensor> received, std::span<const uint8_t> contributes,
                                   Stream& stream) = 0;
  /// Collective over the ranks of a node: each reads the buffers of the others that contribute. After wait(),
  /// Transfer::contribution(c) is the first element of rank c's `mine`, until release(). All of them have one length.
  /// Only where sharing_refusal() returned empty.
  virtual Transfer share_in_node(const Tensor& mine, std::span<const uint8_t> contributes);
  struct Message {
    Tensor data;
    int rank;  ///< that sends or receives it
  };
  /// Messages between ranks; those of two ranks arrive in the order of the calls. Every rank calls it, also without a
  /// message.
  virtual Transfer send_and_receive(std::span<const Message> sends, std::span<const Message> receives, Stream& stream);
  /// True if integers are summed over the ranks without the host; the same on every rank.
  virtual bool sums_on_device() const { return size_ == 1; }
  /// All-reduce in place, modulo 2^64: the sum of every rank's `integers` (i64). Only where sums_on_device().
  virtual Transfer sum_on_device(const Tensor& /*integers*/, Stream& /*stream*/) { return {}; }

  // Control communication.
  virtual void broadcast(void* data, int64_t bytes, int root = 0) = 0;
  virtual void broadcast(std::string& text, int root = 0) = 0;
  virtual void sum(std::span<int64_t> values) = 0;
  virtual void sum(std::span<uint64_t> values) = 0;  ///< modulo 2^64
  virtual void maximum(std::span<int64_t> values) = 0;
  virtual void sum(ExactSum& value) = 0;
  /// Gathers every rank's bytes, in rank order (lengths may differ), on every rank.
  virtual std::vector<std::string> gather_all(const std::string& mine) = 0;
  /// The same on rank 0 alone; on others the result is empty.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  /// Copies host memory of rank `from` to rank `to`; other ranks return at once.
  virtual void copy_between(void* data, int64_t bytes, int from, int to) = 0;
  /// Returns a copy of rank 0's host memory, which may be large, once on each node; `bytes` is the same on every rank.
  virtual std::shared_ptr<const void> share_in_nodes(const void* data, int64_t bytes) = 0;
  virtual void barrier() = 0;

 protected:
  virtual std::unique_ptr<Communicator> make_group(int number) = 0;

  int rank_ = 0, size_ = 1, node_rank_ = 0, node_size_ = 1, node_count_ = 1, ranks_per_node_ = 0;
  std::vector<int> job_ranks_;  ///< of a group

 private:
  std::vector<std::unique_ptr<Communicator>> groups_;
};

/// The communicator of this build over all ranks of the job.
std::unique_ptr<Communicator> make_communicator();

/// Library that moves tensors between GPUs, with its version: "NCCL 2.28.9"; empty where that is MPI. Needs no device.
std::string transfer_library();

}  // namespace llmtrain
