#pragma once
// Rank-independent content of a checkpoint: flat units with the planes of their state, and the tensors in them.

#include <cstdint>
#include <optional>
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
  int64_t tensor_block = -1, expert_block = -1;  ///< as in UnitSpec
  /// Segments do not count: a state divided in one way is read into one divided in another.
  bool operator==(const UnitSchema& other) const {
    return name == other.name && elements == other.elements && tensor_block == other.tensor_block &&
           expert_block == other.expert_block;
  }
};

/// A tensor, or a block of one: rows * columns consecutive elements of a unit, from `offset` on.
struct TensorSchema {
  std::string name;  ///< name in Hugging Face, which the blocks of a tensor share
  int64_t unit = 0;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;      ///< 0 for a vector
  bool transposed = false;  ///< True if Hugging Face stores it as [columns, rows]
  /// Values of each plane in a chunk that begins in the tensor; empty if no plane is by tensor.
  std::vector<int64_t> per_chunk = {};
  std::optional<TensorBlock> block = {};  ///< its place, if other units have the rest of the tensor
  int64_t elements() const { return columns == 0 ? rows : rows * columns; }
  /// The planes do not count.
  bool operator==(const TensorSchema& other) const {
    return name == other.name && unit == other.unit && offset == other.offset && rows == other.rows &&
           columns == other.columns && transposed == other.transposed && block == other.block;
  }
  /// The place in the whole tensor, a vector being one column.
  TensorBlock place() const { return block.value_or(TensorBlock{0, 0, rows, columns == 0 ? 1 : columns}); }
};

struct Schema {
  std::vector<UnitSchema> units;
  std::vector<TensorSchema> tensors;  ///< by unit and offset; the first of each unit begins at 0
  StatePlanes states = master_and_moments();
  // The units are those of all blocks.
  int64_t tensor_blocks = 1;  ///< of split matrices (parallel.tensor_blocks)
  int64_t expert_blocks = 1;  ///< of the experts of a layer, or of its block of matrices
  bool has_blocks() const { return tensor_blocks > 1 || expert_blocks > 1; }
  bool has_same_blocks(const Schema& other) const {
    return tensor_blocks == other.tensor_blocks && expert_blocks == other.expert_blocks;
  }
  UnitPlanes planes_of(int64_t unit) const;
  bool operator==(const Schema&) const = default;
};

/// The schema of these units, with as many blocks as they have.
Schema make_schema(const std::vector<UnitSpec>& units, StatePlanes states = master_and_moments(),
                   int64_t segment_elements = default_segment_elements);
/// Throws UserError(bad_content) beginning with `place` unless sizes are valid, names are usable and unique, tensors
/// are consecutive in their units, the blocks of a tensor are all of it, and the planes are an optimizer's.
void check_schema(const Schema& schema, const std::string& place);
/// The tensors in the order of their first blocks, each with all of its blocks; a whole one is its only block.
std::vector<std::vector<const TensorSchema*>> tensors_in_blocks(const Schema& schema);
/// Describes the differences for the user; empty if both are equal.
std::string difference(const Schema& stored, const Schema& wanted);
/// The same for names and shapes of whole tensors alone, whatever their units and blocks.
std::string tensor_difference(const Schema& stored, const Schema& wanted);

/// Numbering of a checkpoint's shards, one per rank of the run that wrote it. With N = tensor * expert ranks that have
/// all blocks, shard p is of a rank that has the blocks of p % N: those of matrices of p % tensor, and those of experts
/// of p % N / tensor. Among the shards with these it has the number p / N. Common units are in the first of the shards
/// that could hold them.
struct Sharding {
  Sharding(int64_t shards, int64_t tensor_ranks = 1, int64_t blocks = 1,  // NOLINT: without blocks a number
           int64_t expert_ranks = 1, int64_t blocks_of_experts = 1)
      : count(shards),
        tensor(tensor_ranks),
        tensor_blocks(blocks),
        expert(expert_ranks),
        expert_blocks(blocks_of_experts) {}
  int64_t count;
  int64_t tensor;  ///< parallel.tensor, which divides count and the blocks
  int64_t tensor_blocks;
  int64_t expert;  ///< parallel.expert, likewise
  int64_t expert_blocks;

  int64_t ranks_of_blocks() const { return tensor * expert; }
  /// The remainder of the shards that hold a unit.
  int64_t owner_of(const UnitSchema& unit) const {
    return rank_of_block(unit.tensor_block, tensor_blocks, tensor) +
           tensor * rank_of_block(unit.expert_block, expert_blocks, expert);
  }
  int64_t of_unit() const { return count / ranks_of_blocks(); }  ///< shards that hold a unit
};

/// A plane's values for elements [begin, end) of a unit, inside one segment and one tensor (with the padding after it).
/// Values that belong to chunks are those of the chunks that begin there.
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
std::vector<ShardBorders> parts_of_shard(const UnitSchema& unit, int64_t shard, const Sharding& shards);
/// Sets `marks`, one per shard, of the shards that hold some of these elements of a unit. The time does not grow with
/// the other shards.
void mark_shards(const UnitSchema& unit, const ShardBorders& elements, const Sharding& shards,
                 std::vector<uint8_t>& marks);
/// Returns everything that a shard holds: by plane, unit and element.
std::vector<StateRange> ranges_of_shard(const Schema& schema, int64_t shard, const Sharding& shards);

}  // namespace llmtrain
