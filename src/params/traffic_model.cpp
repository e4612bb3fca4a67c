#include "params/traffic_model.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "parallel/node_grid.hpp"
#include "parallel/traffic.hpp"
#include "params/reduction/reduction_plan.hpp"
#include "params/unit_gathers.hpp"
#include "params/weight_ring_use.hpp"

namespace llmtrain {

namespace {

/// Number of values that stand for consecutive groups.
int64_t count_values(const ReductionPlan& plan, const GroupRange& range, int64_t groups) {
  int64_t count = 0;
  plan.each_value(range, groups, [&](const GroupRange&) { ++count; });
  return count;
}

/// Counts of the values that are exchanged of each segment in a step.
struct Exchanges {
  Exchanges(const ReductionPlan& plan, int64_t groups, const NodeGrid& nodes);

  std::vector<int64_t> values;  ///< by rank: values that it sends, or shares in its node
  int64_t most_of_rank = 0;     ///< largest number of values that a rank sends in one round
  int64_t most_of_round = 0;    ///< and of all ranks together
  // These are by node, and empty unless the ranks of a node add before they send.
  std::vector<int64_t> sums;        ///< that it sends
  std::vector<int64_t> sum_rounds;  ///< rounds in which it sends some
};

Exchanges::Exchanges(const ReductionPlan& plan, int64_t groups, const NodeGrid& nodes)
    : values(static_cast<size_t>(nodes.ranks)) {
  const GroupSchedule schedule = plan.schedule(groups);
  if (plan.by_node()) {
    sums.resize(static_cast<size_t>(nodes.nodes()));
    sum_rounds.resize(sums.size());
  }
  for (int64_t round = 0; round < schedule.rounds(); ++round) {
    if (!schedule.exchanges(round)) continue;
    int64_t of_round = 0;
    for (int64_t rank = 0; rank < nodes.ranks; ++rank) {
      const int64_t count = count_values(plan, schedule.exchanged(round, rank), groups);
      values[static_cast<size_t>(rank)] += count;
      most_of_rank = std::max(most_of_rank, count);
      of_round += count;
    }
    most_of_round = std::max(most_of_round, of_round);
    for (size_t node = 0; node < sums.size(); ++node) {
      const int64_t first = nodes.first_rank(static_cast<int64_t>(node));
      const int64_t end = first + nodes.size_of(static_cast<int64_t>(node));
      const int64_t count = node_count(schedule.exchanged(round, first, end), groups);
      sums[node] += count;
      sum_rounds[node] += count > 0 ? 1 : 0;
    }
  }
}

/// Sizes of segments, and how many segments have each.
using SegmentSizes = std::map<int64_t, int64_t>;

/// Segments of a transfer, each divided among the ranks as in borders_of_shard(), and their bytes.
struct Shards {
  const SegmentSizes& segments;
  const StatePlane& storage;
  int64_t ranks;

  /// Bytes of the shards of ranks [first, last).
  int64_t bytes(int64_t first, int64_t last) const {
    int64_t sum = 0;
    for (const auto& [elements, count] : segments) sum += count * bytes_of_one(elements, first, last);
    return sum;
  }
  int64_t bytes(int64_t rank) const { return bytes(rank, rank + 1); }
  int64_t all_bytes() const { return bytes(0, ranks); }
  /// True if all ranks have as much of a segment.
  bool are_equal(int64_t elements) const { return elements / chunk_elements % ranks == 0; }
  int64_t segment_count() const {
    return std::accumulate(segments.begin(), segments.end(), int64_t{0},
                           [](int64_t n, const auto& size) { return n + size.second; });
  }
  /// Number of shards that ranks [first, last) have of all segments together.
  int64_t owners(int64_t first, int64_t last) const {
    int64_t sum = 0;
    for (const auto& [elements, count] : segments) {
      const bool all = elements / chunk_elements >= ranks;
      sum += count * (all ? last - first : (end(elements, last) - end(elements, first)) / chunk_elements);
    }
    return sum;
  }
  /// Messages to one rank that has none of the shards of `rank`. `nodes`: between nodes, where some are joined; else 0.
  int64_t messages(int64_t rank, int64_t nodes) const {
    if (nodes > 0 && joins_segments(segment_count(), bytes(rank), nodes)) return 1;
    int64_t all = 0;
    for (const auto& [elements, count] : segments) {
      const int64_t own = bytes_of_one(elements, rank, rank + 1);
      all += count * ((own + max_message_bytes - 1) / max_message_bytes);
    }
    return all;
  }

 private:
  int64_t end(int64_t elements, int64_t rank) const {
    return rank == 0 ? 0 : borders_of_shard(elements, rank - 1, ranks).end;
  }
  int64_t bytes_of_one(int64_t elements, int64_t first, int64_t last) const {
    return storage.bytes(end(elements, last) - end(elements, first));
  }
};

/// Sums over the transfers of a step, by rank and node.
class TransferSums {
 public:
  TransferSums(const NodeGrid& grid, Transport transport) : grid_(grid), transport_(transport), sums_(grid) {
    for (int64_t node = 0; node < grid.nodes(); ++node) {
      nodes_.push_back({{}, grid.first_rank(node), grid.first_rank(node) + grid.size_of(node)});
    }
  }

  /// Values of gradients go to the owners of their shards, once the ranks of a node have added theirs if they do.
  void exchange(const SegmentSizes& segments, const StatePlane& storage, const Exchanges& e) {
    const Shards s{segments, storage, grid_.ranks};
    if (e.sums.empty()) {
      exchange_by_rank(s, e);
    } else {
      exchange_by_node(s, e);
    }
  }

  /// Every rank receives every shard: from its owner, or from the one rank of its node that does.
  void gather(const SegmentSizes& unit, const StatePlane& storage, int64_t times) {
    const Shards s{unit, storage, grid_.ranks};
    if (transport_ == Transport::nccl) return gather_by_nccl(s, times);
    const int64_t all = s.all_bytes();
    const bool once_a_node = transport_ == Transport::shared_memory && grid_.has_levels();
    const auto receivers = [&](const Node& node) { return once_a_node ? 1 : node.size(); };
    const int64_t copies = once_a_node ? grid_.nodes() : grid_.ranks;
    int64_t most_messages = 0;
    for (Node& node : nodes_) {
      const int64_t own = s.bytes(node.first, node.last);
      node.sent += times * own * (copies - receivers(node));
      node.received += times * receivers(node) * (all - own);
      node.within += times * (node.size() - 1) * (once_a_node ? all : own);
      const int64_t near = transport_ == Transport::shared_memory ? receivers(node) : 1;
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const int64_t messages = s.messages(rank, once_a_node ? grid_.nodes() : 0);
        most_messages = std::max(most_messages, messages);
        count_messages(rank, times * (copies - near) * messages, times * (copies - receivers(node)) * messages);
      }
    }
    const int64_t peers = once_a_node ? grid_.nodes() * (1 + most_places()) : 2 * (grid_.ranks - 1);
    gather_requests_ = std::max(gather_requests_, peers * most_messages);
  }

  /// The owners' parts of a tensor go to the rank that updates it, and back.
  void update(const UnitState& u, const WholeTensor& tensor, const StatePlane& storage) {
    move_parts(u, tensor, storage, true);
    move_parts(u, tensor, storage, false);
  }
  /// Every rank has the tensor: its new parts go to the owners, and from these to all.
  void update_all(const UnitState& u, const WholeTensor& tensor, const StatePlane& storage) {
    move_parts(u, tensor, storage, false);
    const bool once_a_node = transport_ == Transport::shared_memory && grid_.has_levels();
    const int64_t all = storage.bytes(tensor.last - tensor.first);
    std::vector<int64_t> own(nodes_.size());
    for_each_part(u, tensor, [&](int64_t rank, int64_t elements) {
      const auto node = static_cast<size_t>(grid_.node_of(rank));
      const int64_t ranks = nodes_[node].size(), far = once_a_node ? grid_.nodes() - 1 : grid_.ranks - ranks;
      own[node] += storage.bytes(elements);
      nodes_[node].sent += far * storage.bytes(elements);
      count_messages(rank, far + (transport_ == Transport::shared_memory ? 0 : ranks - 1), far);
    });
    for (size_t n = 0; n < nodes_.size(); ++n) {
      nodes_[n].received += (once_a_node ? 1 : nodes_[n].size()) * (all - own[n]);
      nodes_[n].within += (nodes_[n].size() - 1) * (once_a_node ? all : own[n]);
    }
  }

  AxisTraffic total(int64_t exchanges_at_once, int64_t gathers_at_once) {
    std::ranges::copy(nodes_, sums_.nodes.begin());
    sums_.requests = exchanges_at_once * exchange_requests_ + gathers_at_once * gather_requests_;
    return std::move(sums_);
  }

 private:
  struct Node : AxisTraffic::Node {
    int64_t first, last;  ///< ranks
    int64_t size() const { return last - first; }
  };

  /// Calls f(rank, elements) for the parts of the tensor's elements that ranks own.
  template <class F>
  void for_each_part(const UnitState& u, const WholeTensor& tensor, const F& f) const {
    for (const UnitSegment& s : u.segments) {
      if (s.last <= tensor.first || s.first >= tensor.last) continue;
      for (int64_t rank = 0; rank < grid_.ranks; ++rank) {
        const ShardBorders shard = borders_of_shard(s.elements(), rank, grid_.ranks);
        const int64_t begin = std::max(tensor.first, s.first + shard.begin);
        const int64_t end = std::min(tensor.last, s.first + shard.end);
        if (begin < end) f(rank, end - begin);
      }
    }
  }

  /// Parts go from their owners to the rank of the tensor, or from there to the owners.
  void move_parts(const UnitState& u, const WholeTensor& tensor, const StatePlane& storage, bool to_tensor) {
    for_each_part(u, tensor, [&](int64_t owner, int64_t elements) {
      if (owner == tensor.rank) return;
      const int64_t from = to_tensor ? owner : tensor.rank, to = to_tensor ? tensor.rank : owner;
      Node &sender = nodes_[static_cast<size_t>(grid_.node_of(from))],
           &receiver = nodes_[static_cast<size_t>(grid_.node_of(to))];
      const int64_t bytes = storage.bytes(elements), far = &sender == &receiver ? 0 : 1;
      sender.sent += far * bytes;
      (far == 0 ? receiver.within : receiver.received) += bytes;
      count_messages(from, 1, far);
    });
  }

  void count_messages(int64_t rank, int64_t all, int64_t to_other_nodes) {
    sums_.messages[static_cast<size_t>(rank)] += all;
    sums_.network_messages[static_cast<size_t>(rank)] += to_other_nodes;
  }

  void exchange_by_rank(const Shards& s, const Exchanges& e) {
    const int64_t ranks = grid_.ranks, all = s.all_bytes(), owners = s.owners(0, ranks);
    const bool by_message = transport_ != Transport::shared_memory;
    const int64_t values = std::accumulate(e.values.begin(), e.values.end(), int64_t{0});
    for (Node& node : nodes_) {
      const int64_t own = s.bytes(node.first, node.last), near = s.owners(node.first, node.last);
      int64_t of_node = 0, kept = 0;
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const int64_t count = e.values[static_cast<size_t>(rank)];
        of_node += count;
        kept += count * s.bytes(rank);
        const int64_t itself = by_message ? s.owners(rank, rank + 1) : near;
        count_messages(rank, count * (owners - itself), count * (owners - near));
      }
      node.sent += of_node * (all - own);
      node.received += (values - of_node) * own;
      node.within += of_node * own - kept;
      node.own += kept;
    }
    exchange_requests_ = std::max(exchange_requests_, e.most_of_rank * ranks + e.most_of_round);
  }

  /// The ranks for which each rank speaks in its node: itself, and those on other nodes.
  class Speakers {
   public:
    Speakers(const NodeGrid& grid, const Shards& shards)
        : grid_(grid),
          shards_(shards),
          bytes_(static_cast<size_t>(grid.per_node)),
          owners_(static_cast<size_t>(grid.per_node)) {
      for (int64_t rank = 0; rank < grid.ranks; ++rank) {
        const auto place = static_cast<size_t>(rank % grid.per_node);
        bytes_[place] += shards.bytes(rank);
        owners_[place] += shards.owners(rank, rank + 1);
      }
    }
    struct Spoken {
      int64_t bytes = 0;
      int64_t far_owners = 0;  ///< of shards, on other nodes
    };
    Spoken of(int64_t rank) const {
      const int64_t node = grid_.node_of(rank), first = grid_.first_rank(node), size = grid_.size_of(node);
      Spoken spoken;
      for (int64_t place = rank - first; place < grid_.per_node; place += size) {
        spoken.bytes += bytes_[static_cast<size_t>(place)];
        spoken.far_owners += owners_[static_cast<size_t>(place)];
        if (place < size) spoken.far_owners -= shards_.owners(first + place, first + place + 1);
      }
      return spoken;
    }

   private:
    const NodeGrid& grid_;
    const Shards& shards_;
    std::vector<int64_t> bytes_, owners_;  ///< by place in a node
  };

  void exchange_by_node(const Shards& s, const Exchanges& e) {
    const int64_t ranks = grid_.ranks, all = s.all_bytes(), owners = s.owners(0, ranks);
    const Speakers speakers(grid_, s);
    const bool by_message = transport_ == Transport::nccl;
    const int64_t sums = std::accumulate(e.sums.begin(), e.sums.end(), int64_t{0});
    for (size_t n = 0; n < nodes_.size(); ++n) {
      Node& node = nodes_[n];
      const int64_t own = s.bytes(node.first, node.last);
      node.sent += e.sums[n] * (all - own);
      node.received += (sums - e.sums[n]) * own;
      const auto begin = e.values.begin() + node.first;
      const int64_t of_node = std::accumulate(begin, begin + node.size(), int64_t{0});
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const Speakers::Spoken spoken = speakers.of(rank);
        const int64_t values = e.values[static_cast<size_t>(rank)], far = e.sum_rounds[n] * spoken.far_owners;
        const int64_t near = by_message ? values * (owners - spoken.far_owners - s.owners(rank, rank + 1)) : 0;
        node.within += (of_node - values) * spoken.bytes;
        node.own += values * spoken.bytes;
        count_messages(rank, far + near, far);
      }
    }
    const int64_t between = grid_.nodes() * (1 + most_places()), within = by_message ? 2 * e.most_of_rank * ranks : 0;
    exchange_requests_ = std::max({exchange_requests_, between, within});
  }

  void gather_by_nccl(const Shards& s, int64_t times) {
    SegmentSizes equal, others;
    for (const auto& [elements, count] : s.segments) {
      (!grid_.has_levels() || s.are_equal(elements) ? equal : others)[elements] = count;
    }
    if (!equal.empty()) gather_by_ring({equal, s.storage, s.ranks}, times);
    if (!others.empty()) gather_by_node({others, s.storage, s.ranks}, times);
  }

  /// GPUs: a shard goes to the ranks of its node and to one of each other node, which sends it to those of its own.
  void gather_by_node(const Shards& s, int64_t times) {
    const int64_t ranks = grid_.ranks, all = s.all_bytes();
    const Speakers speakers(grid_, s);
    for (Node& node : nodes_) {
      const int64_t own = s.bytes(node.first, node.last), neighbours = node.size() - 1;
      node.sent += times * own * (grid_.nodes() - 1);
      node.received += times * (all - own);
      node.within += times * neighbours * all;
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const int64_t to_far = s.owners(rank, rank + 1) * (grid_.nodes() - 1);
        const int64_t to_node = (s.owners(rank, rank + 1) + speakers.of(rank).far_owners) * neighbours;
        count_messages(rank, times * (to_far + to_node), times * to_far);
      }
    }
    gather_requests_ = std::max(gather_requests_, 2 * ranks * most_places() * s.segment_count());
  }

  /// Each rank receives from the one before it what it has not, and sends to the next one what that has not.
  void gather_by_ring(const Shards& s, int64_t times) {
    const int64_t ranks = grid_.ranks, all = s.all_bytes(), calls = times * s.segment_count();
    const bool far = nodes_.size() > 1;
    const auto missing = [&](int64_t rank) { return times * (all - s.bytes(rank)); };
    for (Node& node : nodes_) {
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        (far && rank == node.first ? node.received : node.within) += missing(rank);
        count_messages(rank, calls, far && rank + 1 == node.last ? calls : 0);
      }
      if (far) node.sent += missing(node.last % ranks);
    }
  }

  /// Largest number of places of another node for which a rank speaks: the last node may have fewer ranks.
  int64_t most_places() const {
    const int64_t fewest = grid_.size_of(grid_.nodes() - 1);
    return (grid_.per_node + fewest - 1) / fewest;
  }

  NodeGrid grid_;
  Transport transport_;
  AxisTraffic sums_;  ///< without its nodes until total()
  std::vector<Node> nodes_;
  int64_t exchange_requests_ = 0, gather_requests_ = 0;
};

/// Gathers of units, of which many are alike.
struct Gathers {
  struct Kind {
    SegmentSizes segments;
    const StatePlane* storage;
    int64_t times;
  };
  std::vector<Kind> kinds = {};

  void add(const UnitState& u, const StatePlane& storage, int64_t times) {
    SegmentSizes sizes;
    for (const UnitSegment& segment : u.segments) ++sizes[segment.elements()];
    const auto same = std::ranges::find_if(kinds, [&](const Kind& kind) {
      return kind.segments == sizes && kind.storage->dtype == storage.dtype &&
             kind.storage->per_chunk == storage.per_chunk;
    });
    if (same != kinds.end()) {
      same->times += times;
    } else {
      kinds.push_back({std::move(sizes), &storage, times});
    }
  }
};

/// Gathers in progress at most: those that gather_all() begins at once; at stage 3 those of two layers.
int64_t gathers_at_once(const UnitStates& units) {
  if (units.policy().whole_weights) return std::min(units.size(), UnitGathers::max_at_once(units));
  int64_t of_layer = 0, most = 0;
  for (const UnitState& u : units) {
    of_layer = u.spec.same_layer_as_previous ? of_layer + 1 : 1;
    most = std::max(most, of_layer);
  }
  return std::min<int64_t>(units.size(), 2 * most);
}

/// Traffic of a group of all its units' ranks.
AxisTraffic traffic_of(const UnitStates& units, int64_t ranks_per_node, Transport transport,
                       std::span<const WholeTensor> updated) {
  const ParamStoreOptions& options = units.options();
  const NodeGrid grid{options.size, ranks_per_node};
  if (options.size == 1) return AxisTraffic(grid);
  TransferSums sums(grid, transport);
  const ReductionPlan plan(options);
  const Exchanges exchanges(plan, options.groups, grid);
  const StatePlane fp32{"gradient"}, bf16_values{"update", DType::bf16};
  SegmentSizes exchanged;
  Gathers gathers;
  const bool gathers_sums = options.zero_stage == 0;
  for (const UnitState& u : units) {
    if (!u.trained()) continue;
    for (const UnitSegment& segment : u.segments) ++exchanged[segment.elements()];
    if (gathers_sums || units.policy().whole_weights) gathers.add(u, gathers_sums ? fp32 : u.storage, 1);
  }
  if (!units.policy().whole_weights) {
    WeightRingUse use(units);
    for (int step = 0; step < 2; ++step) {  // the first one also gathers what is kept between steps
      use.begin_step();
      use.run_passes(plan.schedule(options.groups).rounds() * options.micro_batches_per_group);
    }
    for (int unit = 0; unit < units.size(); ++unit) gathers.add(units[unit], units[unit].storage, use.gathers(unit));
  }
  sums.exchange(exchanged, fp32, exchanges);
  for (const Gathers::Kind& kind : gathers.kinds) sums.gather(kind.segments, *kind.storage, kind.times);
  for (const WholeTensor& tensor : updated) {
    const UnitState& u = units[tensor.unit];
    if (units.policy().whole_state) {
      sums.update_all(u, tensor, bf16_values);
    } else {
      sums.update(u, tensor, bf16_values);
    }
  }
  return sums.total(plan.exchanges_at_once(), gathers_at_once(units));
}

}  // namespace

StepTraffic predict_traffic(const UnitStates& units, int64_t ranks_per_node, Transport transport,
                            std::span<const WholeTensor> updated) {
  return traffic_of(units, ranks_per_node, transport, updated).largest();
}

AxisTraffic data_traffic(const UnitStates& units, const PlannedMesh& mesh, int64_t ranks_per_node, Transport transport,
                         std::span<const WholeTensor> updated) {
  const AxisTraffic group =
      traffic_of(units, std::max<int64_t>(ranks_per_node / mesh.ranks_of_blocks(), 1), transport, updated);
  AxisTraffic all({mesh.ranks, ranks_per_node});
  for (size_t n = 0; n < all.nodes.size(); ++n) {
    // Ranks of a node in as many groups, or fewer than there are.
    const int64_t groups = std::min(mesh.ranks_of_blocks(), ranks_per_node);
    const AxisTraffic::Node& node =
        group.nodes[n * static_cast<size_t>(groups) / static_cast<size_t>(mesh.ranks_of_blocks())];
    all.nodes[n] = {node.sent * groups, node.received * groups, node.within * groups, node.own * groups};
  }
  for (size_t rank = 0; rank < all.messages.size(); ++rank) {
    all.messages[rank] = group.messages[rank / static_cast<size_t>(mesh.ranks_of_blocks())];
    all.network_messages[rank] = group.network_messages[rank / static_cast<size_t>(mesh.ranks_of_blocks())];
  }
  all.requests = group.requests;
  return all;
}

}  // namespace llmtrain
