#pragma once
// Offsets of each parameter in a unit's flat buffer, and the elements that each rank owns. Pure arithmetic.

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

class UnitLayout {
 public:
  explicit UnitLayout(const UnitSpec& spec);

  int64_t elements() const { return elements_; }  ///< padded to whole chunks
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)]; }
  const std::vector<UnitRange>& ranges() const { return ranges_; }  ///< decaying tensors first
  /// size + 1 borders: rank r owns [borders[r], borders[r + 1]).
  std::vector<int64_t> borders(int size) const;

 private:
  void extend_ranges(int64_t end, bool decay, double lr_scale);

  std::vector<int64_t> offsets_;
  std::vector<UnitRange> ranges_;
  int64_t elements_ = 0;
};

}  // namespace llmtrain
