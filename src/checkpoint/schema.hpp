#pragma once
// Rank-independent content of a checkpoint: flat units with the planes of their state, and the tensors in them.

#include <cstdint>
#include <string>
#include <vector>

#include "core/params.hpp"
#include "params/unit_layout.hpp"
#include "params/unit_planes.hpp"

namespace llmtrain {

struct UnitSchema {
  std::string name;
  int64_t elements = 0;  ///< a multiple of the chunk size
  /// Ends of a divided unit's segments (UnitLayout), the last one `elements`; empty: the unit is one segment.
  std::vector<int64_t> segment_ends = {};
  /// Segments do not count: a state divided in one way is read into one divided in another.
  bool operator==(const UnitSchema& other) const { return name == other.name && elements == other.elements; }
};

/// A tensor: rows * columns consecutive elements of a unit, from `offset` on.
struct TensorSchema {
  std::string name;  ///< name in Hugging Face
  int64_t unit = 0;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;      ///< 0 for a vector
  bool transposed = false;  ///< True if Hugging Face stores it as [columns, rows]
  /// Values of each plane in a chunk that begins in the tensor; empty if no plane is by tensor.
  std::vector<int64_t> per_chunk = {};
  int64_t elements() const { return columns == 0 ? rows : rows * columns; }
  /// The planes do not count.
  bool operator==(const TensorSchema& other) const {
    return name == other.name && unit == other.unit && offset == other.offset && rows == other.rows &&
           columns == other.columns && transposed == other.transposed;
  }
};

struct Schema {
  std::vector<UnitSchema> units;
  std::vector<TensorSchema> tensors;  ///< by unit and offset; the first of each unit begins at 0
  StatePlanes states = master_and_moments();
  UnitPlanes planes_of(int64_t unit) const;
  bool operator==(const Schema&) const = default;
};

Schema make_schema(const std::vector<UnitSpec>& units, StatePlanes states = master_and_moments(),
                   int64_t segment_elements = default_segment_elements);
/// Throws UserError(bad_content) beginning with `place` unless sizes are valid, names are usable and unique, tensors
/// are consecutive in their units, and the planes are an optimizer's.
void check_schema(const Schema& schema, const std::string& place);
/// Describes the differences for the user; empty if both are equal.
std::string difference(const Schema& stored, const Schema& wanted);
/// The same for names and shapes of the tensors alone, whatever their units.
std::string tensor_difference(const Schema& stored, const Schema& wanted);

/// A plane's values for elements [begin, end) of a unit, inside one segment and one tensor (with the padding after it).
/// Values that
/// belong to chunks are those of the chunks that begin there.
struct StateRange {
  size_t plane = master_plane;
  int64_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const StateRange&) const = default;
};
/// The plane with its number of values in the chunks of the range.
StatePlane plane_of(const Schema& schema, const StateRange& range);
inline int64_t bytes_of(const Schema& schema, const StateRange& range) {
  return plane_of(schema, range).bytes(range.end - range.begin);
}
/// Returns the elements of a unit that a shard holds: part of each segment that has enough chunks, in order.
std::vector<ShardBorders> parts_of_shard(const UnitSchema& unit, int64_t shard, int64_t shards);
/// Sets `marks`, one per shard, of the shards that hold some of these elements of a unit. The time does not grow with
/// the other shards.
void mark_shards(const UnitSchema& unit, const ShardBorders& elements, std::vector<uint8_t>& marks);
/// Returns everything that shard `shard` of `shards` holds: by plane, unit and element.
std::vector<StateRange> ranges_of_shard(const Schema& schema, int64_t shard, int64_t shards);

}  // namespace llmtrain
