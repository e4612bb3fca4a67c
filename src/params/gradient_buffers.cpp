#include "params/gradient_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/device.hpp"
#include "params/unit_ring.hpp"

namespace llmtrain {

namespace {

/// Zeroes the padding between tensors, since kernels write tensors only and the buffer may have held another part.
void zero_padding(const UnitState& u, int64_t first, const Tensor& flat, Stream& stream) {
  for (size_t p = 0; p < u.spec.params.size(); ++p) {
    const int64_t end = u.layout.offset(static_cast<int>(p)) + u.spec.params[p].numel();
    const int64_t padding = (chunk_elements - end % chunk_elements) % chunk_elements;
    if (padding == 0 || end < first || end >= first + flat.numel()) continue;
    const Tensor gap = part_of(flat, end - first, end + padding - first);
    fill_zero(gap.data, gap.bytes(), stream);
  }
}

}  // namespace

GradientBuffers::GradientBuffers(const UnitStates& units, bool ring)
    : units_(units), has_ring_(ring), own_(static_cast<size_t>(units.size())) {
  std::vector<uint8_t> separate;
  size_t before = 0;          // trained units of the same layer
  size_t before_in_turn = 0;  // those before the units that it uses in turn
  for (int unit = 0; unit < units.size(); ++unit) {
    Unit& own = own_[static_cast<size_t>(unit)];
    divide(units[unit], own, separate);
    const UnitSpec& spec = units[unit].spec;
    if (!spec.same_layer_as_previous) before = 0;
    const bool in_turn = spec.expert_block >= 0;
    if (in_turn && units[unit - 1].spec.expert_block < 0) before_in_turn = before;
    if (in_turn && !spec.has_same_blocks(units[unit - 1].spec)) before = before_in_turn;
    if (!units[unit].trained()) continue;
    for (Part& part : own.parts) {
      part.ring = before;
      part.at_once = units.options().groups_at_once_of(spec);
    }
    ++before;
  }
  plan_rings(separate);
}

void GradientBuffers::plan_rings(std::span<const uint8_t> separate) {
  std::vector<int64_t> elements(separate.size());
  for (bool more = true; more;) {
    more = false;
    auto size = elements.begin();
    for (int unit = 0; unit < units_.size(); ++unit) {
      for (const Part& part : at(unit).parts) {
        *size++ = units_[unit].trained() && part.ring == rings_.size() ? part.memory() : 0;
        more |= part.ring > rings_.size();
      }
    }
    rings_.push_back(plan_ring(elements, separate, units_.options().segment_elements));
  }
  slots_.resize(2 * rings_.size());
  size_t index = 0;
  for (Unit& own : own_) {
    for (Part& part : own.parts) part.in_ring = rings_[part.ring].own[index++] == 0 && has_ring_;
  }
}

/// Parts that are not by rows are written all the time until the reduction: they lie outside the ring.
void GradientBuffers::divide(const UnitState& u, Unit& own, std::vector<uint8_t>& separate) const {
  own.part_of.resize(u.segments.size());
  if (!has_ring_ || u.by_rows == 0) {
    own.parts.push_back({0, u.layout.elements()});
    separate.push_back(u.spec.spans_backward ? 1 : 0);
    return;
  }
  const auto rest = u.order.begin() + static_cast<ptrdiff_t>(u.by_rows);
  bool extends = false;
  for (size_t i = 0; i < u.segments.size(); ++i) {
    const bool by_rows = std::find(rest, u.order.end(), i) == u.order.end();
    if (by_rows || !extends) {
      own.parts.push_back({u.segments[i].first, u.segments[i].first});
      separate.push_back(by_rows ? 0 : 1);
    }
    extends = !by_rows;
    own.part_of[i] = own.parts.size() - 1;
    own.parts.back().last = u.segments[i].last;
  }
}

void GradientBuffers::plan(Arena& arena) {
  const MemoryScope scope = units_.options().exchanged();
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitSpec& spec = units_[unit].spec;
    for (Part& part : own_[static_cast<size_t>(unit)].parts) {
      if (part.in_ring || !spec.trained) continue;
      arena.add(part.buffer, MemoryCategory::gradients, "gradient of " + spec.name, DType::f32, {part.memory()}, scope);
    }
  }
  for (size_t i = 0; i < slots_.size() && has_ring_; ++i) {
    arena.add(slots_[i].buffer, MemoryCategory::gradients, fmt::format("unit gradient {}", i), DType::f32,
              {rings_[i / 2].slots[i % 2]}, scope);
  }
}

size_t GradientBuffers::part_at(int unit, int64_t element) const {
  const std::vector<Part>& parts = at(unit).parts;
  return static_cast<size_t>(std::ranges::upper_bound(parts, element, {}, &Part::first) - parts.begin()) - 1;
}

Tensor GradientBuffers::memory(const Part& part, int64_t group) const {
  LLMTRAIN_CHECK(!part.in_ring || part.slot >= 0, "a gradient has no memory");
  const Tensor& all = part.in_ring ? slots_[static_cast<size_t>(part.slot)].buffer : part.buffer;
  return all.rows(group * part.elements(), part.elements());
}

Tensor GradientBuffers::memory(int unit, size_t segment, int64_t begin, int64_t end, int64_t group) const {
  const Part& part = at(unit).parts[part_of(unit, segment)];
  return llmtrain::part_of(memory(part, group), begin - part.first, end - part.first);
}

bool GradientBuffers::take_slot(const UnitState& u, Part& part, Stream& stream) {
  Slot* best = nullptr;
  for (Slot& slot : std::span(slots_).subspan(2 * part.ring, 2)) {
    if (slot.busy || slot.buffer.numel() < part.memory()) continue;
    if (best == nullptr || slot.buffer.numel() < best->buffer.numel()) best = &slot;
  }
  if (best == nullptr) return false;
  best->busy = true;
  part.slot = static_cast<int>(best - slots_.data());
  for (int64_t group = 0; group < part.at_once && best->part != &part; ++group) {
    zero_padding(u, part.first, memory(part, group), stream);
  }
  best->part = &part;
  return true;
}

bool GradientBuffers::open(int unit, size_t index, Stream& stream) {
  Part& part = own_[static_cast<size_t>(unit)].parts[index];
  if (part.open) return true;
  if (part.exchanges > 0 || (part.in_ring && !take_slot(units_[unit], part, stream))) return false;
  part.open = true;
  return true;
}

void GradientBuffers::close(int unit, size_t index) {
  Part& part = own_[static_cast<size_t>(unit)].parts[index];
  part.open = false;
  free(part);
}

void GradientBuffers::mark(int unit, bool open) {
  for (Part& part : own_[static_cast<size_t>(unit)].parts) part.open = open;
}

void GradientBuffers::end_exchange(int unit, size_t segment) {
  Part& part = own_[static_cast<size_t>(unit)].parts[part_of(unit, segment)];
  --part.exchanges;
  free(part);
}

/// Frees the memory of a part of the ring unless it is written or read.
void GradientBuffers::free(Part& part) {
  if (part.open || part.exchanges > 0 || part.slot < 0) return;
  slots_[static_cast<size_t>(part.slot)].busy = false;
  part.slot = -1;
}

}  // namespace llmtrain
