#pragma once
// Number of values that the planes of a state have in parts of a unit. Pure arithmetic.

#include <cstdint>
#include <vector>

#include "core/params.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

class UnitPlanes {
 public:
  /// A tensor of the unit, and the values of each plane in a chunk that begins in it.
  struct Tensor {
    int64_t offset;
    std::vector<int64_t> per_chunk;
  };

  UnitPlanes() = default;
  /// Tensors by offset; not needed if no plane is by tensor.
  UnitPlanes(StatePlanes planes, const std::vector<Tensor>& tensors);
  UnitPlanes(StatePlanes planes, const UnitSpec& spec, const UnitLayout& layout);

  const StatePlanes& planes() const { return planes_; }
  /// Values of elements [begin, end): whole chunks, unless the plane has a value per element.
  int64_t values(size_t plane, int64_t begin, int64_t end) const;
  int64_t bytes(size_t plane, int64_t begin, int64_t end) const {
    return values(plane, begin, end) * static_cast<int64_t>(size_of(planes_[plane].dtype));
  }
  /// The plane as it is in the chunk that begins at this element: with its number of values.
  StatePlane at(size_t plane, int64_t element) const;
  /// First element after the chunks that have as many values as the one that begins at `element`, at most `last`.
  int64_t end_of_run(int64_t element, int64_t last) const;

 private:
  /// Chunks from `first` on, up to the next run.
  struct Run {
    int64_t first;
    std::vector<int64_t> per_chunk, before;
  };
  const Run& run_of(int64_t chunk) const;
  int64_t values_before(size_t plane, int64_t chunk) const;

  StatePlanes planes_;
  std::vector<Run> runs_;
};

/// True if any plane is by tensor.
bool any_by_tensor(const StatePlanes& planes);
/// Values in a chunk of each plane.
std::vector<int64_t> values_per_chunk(const StatePlanes& planes, const ParamSpec& param, const ParamSlice& slice);

}  // namespace llmtrain
