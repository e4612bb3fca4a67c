#include "params/state_store.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "kernels/elementwise.hpp"

namespace llmtrain {

void StateStore::plan_weights(Arena& arena) {
  for (UnitState& u : units_) {
    if (u.whole) {
      arena.add(u.weights, MemoryCategory::weights, "weights of " + u.spec.name, u.storage.dtype, {u.stored_values()},
                options_.exchanged());
    }
    if (const int64_t values = u.table_values(); values > 0) {
      arena.add(u.tables, MemoryCategory::weights, "scales of " + u.spec.name, DType::f32, {values});
    }
    for (UnitSegment& s : u.segments) {
      if (u.whole || u.trained()) break;
      arena.add(s.rounded, MemoryCategory::weights, "weight shard of " + u.name_of(s), u.storage.dtype,
                {u.storage.values(s.shard_elements())});
    }
  }
}

void StateStore::plan_states(Arena& arena) {
  for (UnitState& u : units_) {
    if (!u.trained()) continue;
    for (UnitSegment& s : u.segments) plan_states(arena, u, s);
  }
}

void StateStore::plan_states(Arena& arena, const UnitState& u, UnitSegment& s) {
  const std::string name = u.name_of(s);
  const int64_t n = s.update_elements();
  for (size_t p = 0; p < options_.states.size(); ++p) {
    const StatePlane& plane = options_.states[p];
    const int64_t values = u.planes.values(p, s.update_begin, s.update_end);
    const bool is_weights = p == master_plane && policy_.own_master;
    if (offload_.has(p)) {
      s.states[p] = Tensor(nullptr, plane.dtype, {values});
    } else if (!is_weights) {
      arena.add(s.states[p], MemoryCategory::optimizer, plane.name + " of " + name, plane.dtype, {values});
    } else if (!policy_.whole_weights) {  // the stored weights are exchanged
      arena.add(s.states[p], MemoryCategory::weights, "weight shard of " + name, plane.dtype, {n});
    }
  }
  if (policy_.rounded_shard && !offload_.has(policy_.rounded_kind())) {
    arena.add(s.rounded, MemoryCategory::weights, "weight shard of " + name, options_.compute, {n});
  }
}

void StateStore::start(Stream& stream) {
  stream_ = &stream;
  for (UnitState& u : units_) {
    u.set_borders(options_.size);
    for (UnitSegment& s : u.segments) {
      const bool weights_are_master = policy_.own_master && !u.quantized() && (policy_.whole_weights || !u.trained());
      if (weights_are_master) s.states[master_plane] = u.stored(s);
      LLMTRAIN_CHECK(u.trained() ? offload_.has(master_plane) || !s.master().empty() : !u.stored(s).empty(),
                     "the parameter store starts after its memory is committed");
    }
  }
}

ParamShard StateStore::shard(int unit, size_t segment) const {
  const UnitState& u = units_[unit];
  const UnitSegment& s = u.segments.at(segment);
  if (!u.trained()) {
    const bool separate = !policy_.own_master && !u.quantized();
    return {s.update_begin, s.update_end, s.states, {}, separate ? u.stored(s) : Tensor()};
  }
  const bool separate = policy_.whole_weights && !policy_.own_master;
  const Tensor weights = separate ? part_of(u.weights, s.update_begin, s.update_end) : s.rounded;
  return {s.update_begin, s.update_end, s.states, reducer_.sum(unit, segment), weights, false, &u.planes};
}

void StateStore::copy_own_weights(int unit, const Tensor& buffer) {
  const UnitState& u = units_[unit];
  if (u.trained() && offload_.has(policy_.weights_kind())) return offload_.copy_weights(unit, buffer);
  for (const UnitSegment& s : u.segments) {
    if (s.update_begin == s.update_end) continue;
    const Tensor out = u.stored_part(buffer, s.update_begin, s.update_end);
    if (u.quantized()) {
      copy_on_device(out.data, s.rounded.data, out.bytes(), *stream_);
    } else {
      cast(out, !u.trained() || policy_.rounded_shard ? s.rounded : s.master(), *stream_);
    }
  }
}

Tensor StateStore::resident(const UnitState& u, size_t plane, int64_t begin, int64_t count) const {
  const UnitSegment& s = u.segment_of(begin, count);
  if (is_rounded_only(u)) return part_of(u.stored(s), begin - s.update_begin, begin - s.update_begin + count);
  return s.states[plane].rows(u.planes.values(plane, s.update_begin, begin),
                              u.planes.values(plane, begin, begin + count));
}

/// Checks that the elements' values can be copied.
void StateStore::expect_state(const UnitState& u, size_t plane, int64_t begin, int64_t count) const {
  LLMTRAIN_CHECK(plane < options_.states.size() && (u.trained() || plane == master_plane), "no such state");
  LLMTRAIN_CHECK(options_.states[plane].by_element() || (begin % chunk_elements == 0 && count % chunk_elements == 0),
                 "part of a chunk of " + options_.states[plane].name);
  if (!u.quantized()) u.segment_of(begin, count);
}

void StateStore::read(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const {
  const UnitState& u = units_[unit];
  expect_state(u, plane, begin, count);
  if (u.quantized()) return u.read_dequantized(begin, count, static_cast<float*>(out), stream);
  if (u.trained() && offload_.has(plane)) {
    return offload_.each_part(unit, plane, begin, count, false, [&](const char* memory, int64_t at, int64_t bytes) {
      std::memcpy(static_cast<char*>(out) + at, memory, static_cast<size_t>(bytes));
    });
  }
  const Tensor from = resident(u, plane, begin, count);
  std::vector<uint16_t> values(is_rounded_only(u) ? static_cast<size_t>(count) : 0);
  read_tensor(values.empty() ? out : values.data(), from, stream);
  if (!values.empty()) widen(from.dtype, values.data(), count, static_cast<float*>(out));
}

void StateStore::write(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream) {
  const UnitState& u = units_[unit];
  expect_state(u, plane, begin, count);
  LLMTRAIN_CHECK(!u.quantized(), fmt::format("{} is stored in fewer bits and has no values to write", u.spec.name));
  if (u.trained() && offload_.has(plane)) {
    return offload_.each_part(unit, plane, begin, count, true, [&](char* memory, int64_t at, int64_t bytes) {
      std::memcpy(memory, static_cast<const char*>(values) + at, static_cast<size_t>(bytes));
    });
  }
  const Tensor to = resident(u, plane, begin, count);
  std::vector<uint16_t> rounded(is_rounded_only(u) ? static_cast<size_t>(count) : 0);
  if (!rounded.empty()) round_to(to.dtype, static_cast<const float*>(values), count, rounded.data());
  if (u.whole) gathers_.finish_all();  // gathers may read from there
  write_tensor(to, rounded.empty() ? values : rounded.data(), stream);
}

}  // namespace llmtrain
