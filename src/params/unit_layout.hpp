#pragma once
// Offsets of each parameter in a unit's flat buffer, its segments, and the elements that each rank owns. Pure
// arithmetic.

#include <cstdint>
#include <vector>

#include "core/params.hpp"

namespace llmtrain {

/// A range of elements with the same treatment: whole chunks, except beside fixed slices of a matrix.
struct UnitRange {
  int64_t begin;
  int64_t end;
  bool decay;
  double lr_scale = 1;  ///< factor of the learning rate
};

/// Elements [begin, end) of a flat buffer that one of `size` ranks owns: whole chunks, as equal as chunks allow.
/// Checkpoints use it too: a different rule requires a new version of their format.
struct ShardBorders {
  int64_t begin;
  int64_t end;
};
ShardBorders borders_of_shard(int64_t elements, int64_t rank, int64_t size);

/// Maximum number of elements whose gradients are exchanged and updated at once: 256 MiB in fp32.
inline constexpr int64_t default_segment_elements = int64_t{1} << 26;

/// A unit of at most `segment_elements` is one segment, and each rank owns a part of it. A larger one is divided: a
/// matrix with ParamSpec::by_rows into blocks of rows, all else into runs of chunks; each rank owns a part of every
/// segment. Only a segment of very long rows is larger.
class UnitLayout {
 public:
  explicit UnitLayout(const UnitSpec& spec, int64_t segment_elements = default_segment_elements);

  int64_t elements() const { return elements_; }  ///< padded to whole chunks
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)].front(); }
  /// Offset of a slice. The slices of a quantised matrix are padded to whole chunks, others follow each other.
  int64_t offset(int param, int slice) const {
    return offsets_[static_cast<size_t>(param)][static_cast<size_t>(slice)];
  }
  const std::vector<UnitRange>& ranges() const { return ranges_; }  ///< decaying tensors first
  /// Borders of the segments: segment i has elements [segments()[i], segments()[i + 1]).
  const std::vector<int64_t>& segments() const { return segments_; }
  /// Segments times size, plus 1: of segment i, rank r owns [borders[i * size + r], borders[i * size + r + 1]).
  std::vector<int64_t> borders(int size) const;

 private:
  void extend_ranges(int64_t end, bool decay, double lr_scale);
  void divide(const UnitSpec& spec, int64_t segment_elements);
  void cut(int64_t end, int64_t most);

  void place(const UnitSpec& spec, size_t param);

  std::vector<std::vector<int64_t>> offsets_;  ///< by parameter and slice
  std::vector<UnitRange> ranges_;
  std::vector<int64_t> segments_{0};
  int64_t elements_ = 0;
};

/// Indices of a slice among units.
struct SlicePlace {
  int unit, param, slice;

  /// First element of the slice in its unit; `layouts` are those of the units.
  int64_t offset(const std::vector<UnitLayout>& layouts) const {
    return layouts[static_cast<size_t>(unit)].offset(param, slice);
  }
};

inline const UnitSpec& spec_of(const UnitSpec& unit) { return unit; }

/// Calls f(place, param, slice) for each slice of a range of units, which spec_of() accepts, in order.
template <class Units, class F>
void for_each_slice(const Units& units, const F& f) {
  SlicePlace place{};
  for (const auto& unit : units) {
    place.param = 0;
    for (const ParamSpec& param : spec_of(unit).params) {
      place.slice = 0;
      for (const ParamSlice& slice : param.slices) {
        f(place, param, slice);
        ++place.slice;
      }
      ++place.param;
    }
    ++place.unit;
  }
}

/// Layouts of the units, with segments of the default size.
inline std::vector<UnitLayout> layouts_of(const std::vector<UnitSpec>& units) { return {units.begin(), units.end()}; }

}  // namespace llmtrain
