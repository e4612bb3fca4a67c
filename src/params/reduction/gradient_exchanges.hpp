#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "parallel/communicator.hpp"
#include "params/reduction/reduction_plan.hpp"
#include "params/unit_gathers.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Exchanges of the gradients of segments between ranks, of which ReductionPlan::exchanges_at_once() are in progress at
/// most. In each one a rank sends the values of its groups, or their sums, to the owners of the segment's shards. With
/// ReductionPlan::by_node() each rank of a node adds the values of all of them, of its own shard and for the owner of
/// its place on every other node, to whom it sends the sums. On the host it reads the values in shared memory; GPUs
/// send them to each other.
class GradientExchanges {
 public:
  /// Adds the values of consecutive ranges of groups to a sum.
  using Add = std::function<void(int unit, size_t segment, std::span<const GroupRange>, std::span<const Tensor>)>;

  GradientExchanges(const UnitStates& units, const ReductionPlan& plan, UnitGathers& gathers);
  void plan(Arena& arena);
  /// Bytes that an exchange sends and receives on this rank, at most.
  int64_t max_bytes() const;
  void start(Stream& stream, Add add);

  /// Later exchanges send values of this round.
  void begin_round(const GroupSchedule& schedule, int64_t round);
  bool empty() const { return in_flight_.empty(); }
  bool full() const { return in_flight_.size() == staging_.size(); }
  /// Starts an exchange unless full(). `values`: fp32, this rank's values of the whole segment, in the order of their
  /// groups. They may be changed after complete_oldest().
  void begin(int unit, size_t segment, std::span<const Tensor> values);
  /// Adds what has arrived, in the order of the exchanges.
  void add_arrived();
  /// True if complete_oldest() would not wait.
  bool oldest_is_complete() const;
  struct Completed {
    int unit;
    size_t segment;
  };
  Completed complete_oldest();

 private:
  /// A value that is exchanged, and its sender: a rank, or a node.
  struct Value {
    GroupRange groups;
    int64_t sender;
    size_t index;           ///< among those of the sender
    int64_t neighbour = 0;  ///< number among those of the other ranks of this node
  };
  /// The values of a round. Those of all ranks, or nodes, in the order of their groups.
  struct Round {
    std::vector<std::vector<uint8_t>> contributes;  ///< by index of a value: 1 for ranks that have so many
    size_t values_per_rank = 0;
    std::vector<Value> values;       ///< that an owner adds
    std::vector<Value> node_values;  ///< of the ranks of this node, by_node()
    TreeFold node_sums;              ///< the additions of this node
  };
  struct Exchange {
    int unit;
    size_t segment;
    const Round* round;
    size_t staging;
    bool sent = false;   ///< by_node(): the node's sums are on their way
    bool added = false;  ///< others may still read this rank's values
  };
  /// Memory and transfers of one exchange at a time.
  struct Staging {
    /// fp32: received values; with by_node() the sums of other nodes, then those of this node, then what its ranks
    /// send.
    Tensor memory;
    std::vector<Tensor> own;          ///< values of this rank
    std::vector<Transfer> transfers;  ///< by index of a value; one if the ranks of a node send
    Transfer messages;                ///< between nodes
  };

  bool by_node() const { return plan_.by_node(); }
  /// The ranks for which this rank adds: itself, and those on other nodes.
  const std::vector<int64_t>& own_owners() const;
  static ShardBorders part_of_owner(const UnitSegment& s, int64_t owner);
  int64_t elements_of_owners(const UnitSegment& s) const;
  int64_t begin_of_neighbours(const UnitSegment& s) const;
  void lay_out_ranks(const GroupSchedule& schedule, int64_t round, Round& layout) const;
  void lay_out_nodes(const GroupSchedule& schedule, int64_t round, Round& layout) const;
  int64_t staging_elements(const UnitSegment& s) const;
  void lay_out_received(const UnitSegment& s, const Round& round, const Tensor& memory);
  Tensor& received_at(size_t index, int rank) {
    return received_[index * static_cast<size_t>(options_.size) + static_cast<size_t>(rank)];
  }
  void send_in_node(const UnitSegment& s, Staging& staging);
  bool pending(const Exchange& exchange) const;
  void send_arrived();
  void send_node_sums(Exchange& exchange);
  /// A part of the values that this rank adds for an owner.
  struct OwnerPart {
    ShardBorders borders;
    int64_t first;  ///< where it begins in the staging memory, of the first value from another rank of the node
    int64_t next;   ///< from there to that of the next value
  };
  void add_node_values(Exchange& exchange, const OwnerPart& part, const Tensor& sums);
  void add(Exchange& exchange);
  Tensor value_of(const Exchange& exchange, const Value& value, const OwnerPart& part) const;

  const UnitStates& units_;
  const ParamStoreOptions& options_ = units_.options();
  const ReductionPlan& plan_;
  UnitGathers& gathers_;
  int64_t received_shards_;       ///< maximum number of shards that arrive in messages of one exchange
  int64_t neighbour_values_ = 0;  ///< by_node(): maximum number of values that other ranks of the node send
  /// by_node(), by member of this node: the ranks for which it adds, itself first.
  std::vector<std::vector<int64_t>> owners_;
  std::vector<Staging> staging_;
  std::vector<Round> rounds_;        ///< by round modulo their number: one more than exchanges may be in progress
  std::vector<Exchange> in_flight_;  ///< at most one per staging memory, oldest first
  size_t next_staging_ = 0;
  Round* round_ = nullptr;
  Stream* stream_ = nullptr;
  /// On GPUs, by_node(): adds the values of a node's ranks, so that the model's work does not wait for them, and
  /// transfers start in the same order on every rank.
  std::optional<Stream> node_stream_;
  Add add_;

  std::vector<Tensor> received_;  ///< by index of a value and rank, for the exchange being started or completed
  std::vector<GroupRange> groups_;
  std::vector<Tensor> tensors_;
  std::vector<Communicator::Message> sends_, receives_;
};

}  // namespace llmtrain
