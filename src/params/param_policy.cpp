// Buffers of each stage, and their sizes in bytes.

#include <fmt/format.h>

#include <algorithm>

#include "params/unit_state.hpp"

namespace llmtrain {

namespace {

bool any_later_block_has_several_groups(int64_t groups, int64_t blocks) {
  for (int64_t g = 1; g < groups; ++g) {
    const int64_t block = g * blocks / groups;
    if (block > 0 && block == (g - 1) * blocks / groups) return true;
  }
  return false;
}

/// Maximum number of groups of one round whose gradients come from ranks of other nodes, over all rounds and numbers of
/// groups.
int64_t max_received_shards(const ParamStoreOptions& o) {
  const int64_t others = o.rank < o.groups ? std::min<int64_t>(o.size, o.groups) - 1 : o.groups;
  return std::min<int64_t>(others, o.size - o.node_size);
}

/// On the host, offloading to host memory means no offloading.
Offload elsewhere(Offload place) { return place == Offload::cpu && device_memory_is_host() ? Offload::none : place; }

}  // namespace

ParamPolicy::ParamPolicy(const ParamStoreOptions& o) : offloaded(o.states.size(), false) {
  constexpr int64_t max_groups = int64_t{1} << 30;
  LLMTRAIN_CHECK(o.zero_stage >= 0 && o.zero_stage <= 3, "ZeRO has the stages 0 to 3");
  LLMTRAIN_CHECK(o.groups >= 1 && o.groups <= max_groups, "a step has at least one reduction group");
  LLMTRAIN_CHECK(o.blocks >= 1 && o.blocks <= o.groups, "a reduction block has at least one group");
  LLMTRAIN_CHECK(o.micro_batches_per_group >= 1, "a group has at least one micro-batch");
  LLMTRAIN_CHECK(o.node_size >= 1 && o.node_size <= o.size, "a node has at least one rank and at most all");
  const bool alone = o.size == 1;
  const Offload optimizer = elsewhere(o.offload_optimizer);
  const Offload weights = o.zero_stage == 3 ? elsewhere(o.offload_parameters) : Offload::none;
  LLMTRAIN_CHECK(optimizer == weights || optimizer == Offload::none || weights == Offload::none,
                 "offload_optimizer and offload_parameters must be equal if both are set");
  const bool optimizer_goes = optimizer != Offload::none, weights_go = weights != Offload::none;
  own_master = o.compute == DType::f32;
  whole_state = o.zero_stage == 0 || alone;
  whole_weights = o.zero_stage < 3 || (alone && own_master && !weights_go);
  const bool master_goes = own_master ? weights_go : optimizer_goes;
  rounded_shard = !whole_weights && !own_master && master_goes;
  std::fill(offloaded.begin(), offloaded.end(), optimizer_goes);
  offloaded[master_plane] = master_goes;
  offloaded.push_back(rounded_shard && weights_go);
  on_disk = (master_goes || optimizer_goes) && (optimizer == Offload::nvme || weights == Offload::nvme);
  gather_sums = o.zero_stage == 0 && !alone;
  gradient_is_sum = alone && o.groups == 1;
  // On one rank a reduction completes at once, so that the ring costs nothing at any stage.
  gradient_ring = !gradient_is_sum && o.micro_batches_per_group == 1 && (o.zero_stage >= 2 || alone);
  block_accumulator = any_later_block_has_several_groups(o.groups, o.blocks);
  exchanged = o.node_size > 1 ? MemoryScope::shared : MemoryScope::own;
  received_shards = alone ? 0 : max_received_shards(o);
}

void ParamStore::State::plan_weights(Arena& arena) {
  for (size_t i = 0; i < units.size(); ++i) {
    UnitState& u = units[i];
    const bool whole = whole_weights_of(u);
    if (whole || has_own_buffer(static_cast<int>(i))) {
      arena.add(u.weights, MemoryCategory::weights, "weights of " + u.spec.name, u.storage.dtype,
                {u.storage.values(u.layout.elements())}, policy.exchanged);
    }
    if (const int64_t values = u.table_values(); values > 0) {
      arena.add(u.tables, MemoryCategory::weights, "scales of " + u.spec.name, DType::f32, {values});
    }
    for (UnitSegment& s : u.segments) {
      if (whole || u.trained()) break;
      arena.add(s.rounded, MemoryCategory::weights, "weight shard of " + u.name_of(s), u.storage.dtype,
                {u.storage.values(s.shard_elements())});
    }
  }
  if (policy.whole_weights) return;
  for (size_t i = 0; i < weight_slots.size(); ++i) {
    const int64_t values = weight_rings[i / 2].slots[i % 2];
    if (values == 0) continue;
    arena.add(weight_slots[i].buffer, MemoryCategory::weights, fmt::format("gathered weights {}", i),
              i / 2 == 2 ? DType::u8 : options.compute, {values}, policy.exchanged);
  }
}

void ParamStore::State::plan_optimizer(Arena& arena) {
  for (UnitState& u : units) {
    if (!u.trained()) continue;
    for (UnitSegment& s : u.segments) plan_states(arena, u, s);
  }
}

void ParamStore::State::plan_states(Arena& arena, const UnitState& u, UnitSegment& s) {
  const std::string name = u.name_of(s);
  const int64_t n = s.update_elements();
  for (size_t p = 0; p < options.states.size(); ++p) {
    const StatePlane& plane = options.states[p];
    const int64_t values = u.planes.values(p, s.update_begin, s.update_end);
    const bool is_weights = p == master_plane && policy.own_master;
    if (policy.offloaded[p]) {
      s.states[p] = Tensor(nullptr, plane.dtype, {values});
    } else if (!is_weights) {
      arena.add(s.states[p], MemoryCategory::optimizer, plane.name + " of " + name, plane.dtype, {values});
    } else if (!policy.whole_weights) {  // the stored weights are exchanged
      arena.add(s.states[p], MemoryCategory::weights, "weight shard of " + name, plane.dtype, {n});
    }
  }
  if (policy.rounded_shard && !policy.offloaded[rounded_kind()]) {
    arena.add(s.rounded, MemoryCategory::weights, "weight shard of " + name, options.compute, {n});
  }
}

void ParamStore::State::plan_gradients(Arena& arena) {
  for (UnitState& u : units) {
    if (!u.trained()) continue;
    for (GradientPart& part : u.parts) {
      if (part.in_ring) continue;
      arena.add(part.buffer, MemoryCategory::gradients, "gradient of " + u.spec.name, DType::f32, {part.elements()},
                policy.exchanged);
    }
    for (UnitSegment& s : u.segments) {
      if (policy.gradient_is_sum) break;
      arena.add(s.total, MemoryCategory::gradients, "gradient sum of " + u.name_of(s), DType::f32,
                {s.shard_elements()});
      if (!policy.block_accumulator) continue;
      arena.add(s.block, MemoryCategory::gradients, "block sum of " + u.name_of(s), DType::f32, {s.shard_elements()});
    }
  }
  if (!policy.gradient_ring) return;
  for (size_t i = 0; i < gradient_slots.size(); ++i) {
    arena.add(gradient_slots[i].buffer, MemoryCategory::gradients, fmt::format("unit gradient {}", i), DType::f32,
              {gradient_ring.slots[i]}, policy.exchanged);
  }
}

void ParamStore::State::plan_staging(Arena& arena) {
  if (policy.received_shards == 0) return;
  int64_t largest = 0;
  for (const UnitState& u : units) {
    for (const UnitSegment& s : u.segments) largest = std::max(largest, u.trained() ? s.shard_elements() : 0);
  }
  for (size_t i = 0; i < staging.size(); ++i) {
    arena.add(staging[i], MemoryCategory::communication, fmt::format("received gradients {}", i), DType::f32,
              {policy.received_shards * largest});
  }
}

void ParamStore::State::plan_offload(Arena& arena) {
  if (offloaded.empty()) return;
  if (device_memory_is_host()) {
    arena.add(ring_memory, MemoryCategory::optimizer, "offloaded pieces", DType::u8, {ring_bytes()});
  } else {
    arena.add(device_piece, MemoryCategory::optimizer, "offloaded piece", DType::u8, {offloaded.max_piece()});
  }
}

void ParamStore::plan(Arena& arena) {
  state_->plan_weights(arena);
  state_->plan_optimizer(arena);
  state_->plan_offload(arena);
  if (!state_->any_trained()) return;
  state_->plan_gradients(arena);
  state_->plan_staging(arena);
}

void ParamStore::State::start(Communicator& given_communicator, Stream& given_stream) {
  LLMTRAIN_CHECK(given_communicator.size() == options.size && given_communicator.rank() == options.rank,
                 "the parameter store was planned for another rank or number of ranks");
  communicator = &given_communicator;
  stream = &given_stream;
  int64_t largest = 0;  // bytes sent and received
  for (UnitState& u : units) {
    u.borders = u.layout.borders(options.size);
    for (const int64_t border : u.borders) u.stored_borders.push_back(u.storage.values(border));
    largest = std::max(largest, u.storage.bytes(u.layout.elements()));
    for (size_t i = 0; i < u.segments.size(); ++i) {
      UnitSegment& s = u.segments[i];
      for (int r = 0; r <= options.size; ++r) {
        s.borders.push_back(u.borders[i * static_cast<size_t>(options.size) + static_cast<size_t>(r)] - s.first);
      }
      if (policy.own_master && !u.quantized() && (policy.whole_weights || !u.trained())) s.master() = stored(u, s);
      LLMTRAIN_CHECK(u.trained() ? policy.offloaded[master_plane] || !s.master().empty() : !stored(u, s).empty(),
                     "the parameter store starts after its memory is committed");
      if (!u.trained()) continue;
      const int64_t exchanged = s.elements() + policy.received_shards * s.shard_elements();
      largest = std::max(largest, exchanged * static_cast<int64_t>(sizeof(float)));
    }
  }
  communicator->reserve(largest);
  received.resize(static_cast<size_t>(options.size));
  contributes.resize(static_cast<size_t>(options.size));
  in_order.reserve(static_cast<size_t>(options.size));
  in_flight.reserve(staging.size());
  start_offload();
}

void ParamStore::start(Communicator& communicator, Stream& stream) { state_->start(communicator, stream); }

}  // namespace llmtrain
