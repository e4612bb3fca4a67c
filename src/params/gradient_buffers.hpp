#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "params/unit_ring.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Memory of the units' gradients from the backward pass to the end of their exchange. A unit has one part, or in a
/// ring of two buffers one for each segment of a matrix by rows, and for the segments between these. The trained units
/// of a layer are written together: each has a ring of its own, but for those that the layer uses in turn. A part has
/// memory for each of ParamStoreOptions::groups_at_once_of() its unit.
class GradientBuffers {
 public:
  /// `ring`: a unit's gradient lives from its backward pass to the end of its reduction only.
  GradientBuffers(const UnitStates& units, bool ring);
  void plan(Arena& arena);

  size_t part_count(int unit) const { return at(unit).parts.size(); }
  size_t part_at(int unit, int64_t element) const;
  size_t part_of(int unit, size_t segment) const { return at(unit).part_of[segment]; }
  int64_t begin_of(int unit, size_t part) const { return at(unit).parts[part].first; }
  int64_t end_of(int unit, size_t part) const { return at(unit).parts[part].last; }

  /// Gives a part memory, to be written, and zeroes its padding; returns false if an exchange must end before.
  bool open(int unit, size_t part, Stream& stream);
  /// The part is written. Frees its memory unless it is in an exchange.
  void close(int unit, size_t part);
  /// Declares all parts written, or all still open, without the passes that do so.
  void mark(int unit, bool open);
  // The segment's part is read by another exchange, or by one less.
  void begin_exchange(int unit, size_t segment) {
    ++own_[static_cast<size_t>(unit)].parts[part_of(unit, segment)].exchanges;
  }
  void end_exchange(int unit, size_t segment);

  /// fp32, all elements of an open part, of one group of those at once.
  Tensor memory(int unit, size_t part, int64_t group = 0) const { return memory(at(unit).parts[part], group); }
  /// Elements [begin, end) of a unit, which are of the segment.
  Tensor memory(int unit, size_t segment, int64_t begin, int64_t end, int64_t group = 0) const;

 private:
  /// Elements [first, last) of a unit's gradient that have memory together.
  struct Part {
    int64_t first = 0, last = 0;
    size_t ring = 0;
    int64_t at_once = 1;  ///< groups
    bool in_ring = false;
    Tensor buffer = {};  ///< fp32, of one group after the other; empty in the ring
    int slot = -1;       ///< of the ring
    bool open = false;   ///< from the first write to the start of the last exchange
    int exchanges = 0;   ///< number in flight

    int64_t elements() const { return last - first; }
    int64_t memory() const { return at_once * elements(); }
  };
  struct Unit {
    std::vector<Part> parts;
    std::vector<size_t> part_of;  ///< by segment
  };
  struct Slot {
    Tensor buffer;
    const Part* part = nullptr;  ///< part whose padding is zero in the buffer
    bool busy = false;           ///< open or in flight
  };

  void divide(const UnitState& u, Unit& own, std::vector<uint8_t>& separate) const;
  void plan_rings(std::span<const uint8_t> separate);
  bool take_slot(const UnitState& u, Part& part, Stream& stream);
  void free(Part& part);
  Tensor memory(const Part& part, int64_t group) const;
  const Unit& at(int unit) const { return own_[static_cast<size_t>(unit)]; }

  const UnitStates& units_;
  bool has_ring_;
  std::vector<Unit> own_;
  std::vector<RingPlan> rings_;
  std::vector<Slot> slots_;  ///< two of each ring
};

}  // namespace llmtrain
