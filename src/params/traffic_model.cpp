#include "params/traffic_model.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "params/reduction_groups.hpp"
#include "params/unit_ring.hpp"

namespace llmtrain {

namespace {

/// Sums over the transfers of a step, by rank and node.
class TransferSums {
 public:
  TransferSums(int64_t ranks, int64_t ranks_per_node, Transport transport)
      : ranks_(ranks), per_node_(ranks_per_node), transport_(transport), messages_(static_cast<size_t>(ranks)) {
    for (int64_t first = 0; first < ranks; first += ranks_per_node) {
      nodes_.push_back({first, std::min(first + ranks_per_node, ranks)});
    }
  }

  /// Elements of a transfer, divided among the ranks as in borders_of_shard(), and their bytes.
  struct Shards {
    int64_t elements;
    const StatePlane* storage;
    int64_t bytes(int64_t first, int64_t last, int64_t ranks) const {
      return storage->bytes(end(last, ranks) - end(first, ranks));
    }
    /// Number of ranks of [first, last) that have a shard.
    int64_t owners(int64_t first, int64_t last, int64_t ranks) const {
      const bool all = elements / chunk_elements >= ranks;
      return all ? last - first : (end(last, ranks) - end(first, ranks)) / chunk_elements;
    }

   private:
    int64_t end(int64_t rank, int64_t ranks) const {
      return rank == 0 ? 0 : borders_of_shard(elements, rank - 1, ranks).end;
    }
  };

  /// The ordered reduction: ranks [0, contributors) send each shard of their gradient to its owner.
  void exchange_ordered(const Shards& s, int64_t contributors, int64_t times) {
    if (times == 0 || contributors == 0) return;
    const int64_t all = s.bytes(0, ranks_, ranks_), owners = s.owners(0, ranks_, ranks_);
    int64_t most = 0;
    for (Node& node : nodes_) {
      const int64_t sharing = std::clamp(contributors - node.first, int64_t{0}, node.size());
      const int64_t own = s.bytes(node.first, node.last, ranks_);
      node.sent += times * sharing * (all - own);
      node.received += times * (contributors - sharing) * own;
      node.within += times * (sharing * own - s.bytes(node.first, node.first + sharing, ranks_));
      const int64_t near = s.owners(node.first, node.last, ranks_);
      const bool by_message = transport_ != Transport::shared_memory;
      for (int64_t rank = node.first; rank < node.first + sharing; ++rank) {
        const int64_t itself = s.owners(rank, rank + 1, ranks_);
        const int64_t sends = owners - near + (by_message ? near - itself : 0);
        messages_[static_cast<size_t>(rank)] += times * sends;
        most = std::max(most, sends + contributors - (by_message ? 1 : sharing));
      }
    }
    exchange_requests_ = std::max(exchange_requests_, most);
  }

  /// Every rank receives every shard from its owner.
  void gather(const Shards& s, int64_t times = 1) {
    if (transport_ == Transport::nccl) return gather_by_ring(s, times);
    const int64_t all = s.bytes(0, ranks_, ranks_);
    for (Node& node : nodes_) {
      const int64_t own = s.bytes(node.first, node.last, ranks_);
      node.sent += times * own * (ranks_ - node.size());
      node.received += times * node.size() * (all - own);
      node.within += times * (node.size() - 1) * own;
      const int64_t others = ranks_ - (transport_ == Transport::shared_memory ? node.size() : 1);
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const int64_t bytes = s.bytes(rank, rank + 1, ranks_), pieces = (bytes + piece_bytes - 1) / piece_bytes;
        messages_[static_cast<size_t>(rank)] += times * others * pieces;
      }
    }
    gather_requests_ = std::max(gather_requests_, 2 * (ranks_ - 1));
  }

  StepTraffic total(int64_t exchanges_at_once, int64_t gathers_at_once) const {
    StepTraffic t;
    for (const Node& node : nodes_) {
      t.port_bytes = std::max({t.port_bytes, node.sent, node.received});
      t.node_bytes = std::max(t.node_bytes, node.within);
    }
    t.messages = *std::ranges::max_element(messages_);
    t.requests = exchanges_at_once * exchange_requests_ + gathers_at_once * gather_requests_;
    return t;
  }

 private:
  static constexpr int64_t piece_bytes = int64_t{512} << 20;  // as in mpi_transfer.hpp
  struct Node {
    int64_t first, last;  ///< ranks
    int64_t sent = 0, received = 0, within = 0;
    int64_t size() const { return last - first; }
  };

  /// Each rank receives from the one before it what it has not, and sends to the next one what that has not.
  void gather_by_ring(const Shards& s, int64_t times) {
    const int64_t all = s.bytes(0, ranks_, ranks_);
    const auto missing = [&](int64_t rank) { return times * (all - s.bytes(rank, rank + 1, ranks_)); };
    for (Node& node : nodes_) {
      for (int64_t rank = node.first; rank < node.last; ++rank) {
        const bool crosses = rank == node.first && nodes_.size() > 1;
        (crosses ? node.received : node.within) += missing(rank);
        messages_[static_cast<size_t>(rank)] += times;
      }
      if (nodes_.size() > 1) node.sent += missing(node.last % ranks_);
    }
  }

  int64_t ranks_, per_node_;
  Transport transport_;
  std::vector<Node> nodes_;
  std::vector<int64_t> messages_;  ///< by rank
  int64_t exchange_requests_ = 0, gather_requests_ = 0;
};

/// The gathers of weights around their use at stage 3, by unit: the rules of WeightRing, on the order in which Decoder
/// uses its units.
class RingUse {
 public:
  explicit RingUse(const UnitStates& units) : units_(units), seen_(static_cast<size_t>(units.size())) {
    for (size_t ring = 0; ring < rings; ++ring) {
      std::vector<int64_t> sizes;
      for (const UnitState& u : units) sizes.push_back(!u.whole && ring_of(u) == ring ? u.stored_values() : 0);
      const bool keeps = units.options().keeps_gathered;
      plans_[ring] = plan_ring(sizes, std::vector<uint8_t>(sizes.size(), keeps ? 1 : 0));
      for (size_t i = 0; i < 2; ++i) slots_[2 * ring + i].values = plans_[ring].slots[i];
    }
    for (int unit = 0; unit < units.size(); ++unit) {
      if (unit == 0 || !units[unit].spec.same_layer_as_previous) layers_.emplace_back();
      layers_.back().push_back(unit);
    }
  }

  void begin_step() {
    for (Slot& slot : slots_) {
      if (slot.unit >= 0 && units_[slot.unit].trained()) slot = {slot.values};
    }
    for (int unit = 0; unit < units_.size(); ++unit) {
      if (units_[unit].trained()) seen_[static_cast<size_t>(unit)].gathered = false;
    }
  }
  /// A micro-batch: the forward pass, the head, the backward pass.
  void pass() {
    const size_t last = layers_.size() - 1;
    for (size_t layer = 0; layer <= last; ++layer) use(layer, layer + 1 < last ? layer + 1 : layer);
    const bool tied = units_[0].spec.spans_backward;
    use(tied ? 0 : last, last > 0 ? last - 1 : 0);
    for (size_t layer = last; layer > 0; --layer) {
      use(layer, std::max<size_t>(layer, 2) - 1);
      if (layer > 2 && layer < last) prefetch(layer - 2);
    }
  }
  int64_t gathers(int unit) const { return seen_[static_cast<size_t>(unit)].gathers; }
  /// Micro-batches after the second one gather what that gathers.
  void run_passes(int64_t count) {
    for (Unit& unit : seen_) unit.gathers = unit.before = 0;
    for (int64_t i = 0; i < std::min<int64_t>(count, 3); ++i) {
      for (Unit& unit : seen_) unit.before = unit.gathers;
      pass();
    }
    for (Unit& unit : seen_) unit.gathers += std::max<int64_t>(count - 3, 0) * (unit.gathers - unit.before);
  }

 private:
  static constexpr size_t rings = 3;
  struct Slot {
    int64_t values = 0;
    int unit = -1;
    bool reserved = false;
    int64_t last_use = 0;
  };
  struct Unit {
    bool gathered = false;
    int64_t gathers = 0, before = 0;
  };

  static size_t ring_of(const UnitState& u) { return u.quantized() ? 2 : u.spec.same_layer_as_previous ? 1 : 0; }

  void use(size_t layer, size_t next) {
    for (const int unit : layers_[layer]) acquire(unit);
    held_ = layer;
    if (next != layer) prefetch(next);
    held_ = layers_.size();
  }
  void prefetch(size_t layer) {
    for (const int unit : layers_[layer]) start(unit, false);
  }
  void acquire(int unit) {
    Slot* slot = start(unit, true);
    if (slot == nullptr) return;
    slot->reserved = false;
    slot->last_use = ++clock_;
  }
  bool is_held(int unit) const {
    return held_ < layers_.size() && std::ranges::find(layers_[held_], unit) != layers_[held_].end();
  }
  /// Returns the slot of the unit, or null if it has none.
  Slot* start(int unit, bool evict) {
    const UnitState& u = units_[unit];
    Unit& seen = seen_[static_cast<size_t>(unit)];
    if (u.whole || seen.gathered) return nullptr;
    const size_t ring = ring_of(u);
    if (plans_[ring].own[static_cast<size_t>(unit)] != 0) {
      seen.gathered = true;
      ++seen.gathers;
      return nullptr;
    }
    Slot* best = nullptr;
    for (Slot& slot : std::span(slots_).subspan(2 * ring, 2)) {
      if (slot.unit == unit) return &slot;
    }
    for (Slot& slot : std::span(slots_).subspan(2 * ring, 2)) {
      const bool held = slot.unit >= 0 && is_held(slot.unit);
      if (held || slot.values < u.stored_values() || (slot.reserved && !evict)) continue;
      if (best == nullptr || is_better(slot, *best)) best = &slot;
    }
    if (best == nullptr) return nullptr;
    ++seen.gathers;
    *best = {best->values, unit, true, best->last_use};
    return best;
  }
  static bool is_better(const Slot& a, const Slot& b) {
    if (a.reserved != b.reserved) return !a.reserved;
    if (a.values != b.values) return a.values < b.values;
    return a.last_use < b.last_use;
  }

  const UnitStates& units_;
  std::array<RingPlan, rings> plans_;
  std::array<Slot, 2 * rings> slots_;
  std::vector<std::vector<int>> layers_;  ///< units of each layer
  size_t held_ = 0;                       ///< layer that is in use
  std::vector<Unit> seen_;
  int64_t clock_ = 0;
};

}  // namespace

StepTraffic predict_traffic(const UnitStates& units, int64_t ranks_per_node, Transport transport) {
  const ParamStoreOptions& options = units.options();
  const int64_t ranks = options.size;
  if (ranks == 1) return {};
  TransferSums sums(ranks, ranks_per_node, transport);
  const StatePlane fp32{"gradient"};
  const auto each_segment = [](const UnitState& u, const auto& see) {
    for (const UnitSegment& segment : u.segments) see(segment.elements());
  };
  const GroupSchedule schedule{options.groups, ranks};
  const bool gathers_sums = options.zero_stage == 0;
  for (const UnitState& u : units) {
    if (!u.trained()) continue;
    each_segment(u, [&](int64_t elements) {
      sums.exchange_ordered({elements, &fp32}, ranks, options.groups / ranks);
      sums.exchange_ordered({elements, &fp32}, options.groups % ranks, 1);
      if (gathers_sums) sums.gather({elements, &fp32});
      if (!gathers_sums && units.policy().whole_weights) sums.gather({elements, &u.storage});
    });
  }
  if (!units.policy().whole_weights) {
    RingUse use(units);
    for (int step = 0; step < 2; ++step) {  // the first one also gathers what is kept between steps
      use.begin_step();
      use.run_passes(schedule.rounds() * options.micro_batches_per_group);
    }
    for (int unit = 0; unit < units.size(); ++unit) {
      const UnitState& u = units[unit];
      each_segment(u, [&](int64_t elements) { sums.gather({elements, &u.storage}, use.gathers(unit)); });
    }
  }
  constexpr int64_t exchanges_at_once = 2;  // the staging buffers of GradientReducer
  int64_t gathers_at_once = 0;
  for (const UnitState& u : units) gathers_at_once = std::max(gathers_at_once, std::ssize(u.segments));
  gathers_at_once *= std::min(units.size(), units.policy().whole_weights ? 17 : 4);  // see gather_all() and WeightRing
  return sums.total(exchanges_at_once, gathers_at_once);
}

}  // namespace llmtrain
