#pragma once
// Rank-independent content of a checkpoint: flat units with fp32 state, and the tensors in them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/params.hpp"

namespace llmtrain {

std::string_view name_of(StateKind kind);  // "master", ...

struct UnitSchema {
  std::string name;
  int64_t elements = 0;  ///< a multiple of the chunk size
  bool operator==(const UnitSchema&) const = default;
};

/// A tensor: rows * columns consecutive elements of a unit, from `offset` on.
struct TensorSchema {
  std::string name;  ///< name in Hugging Face
  int64_t unit = 0;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;      ///< 0 for a vector
  bool transposed = false;  ///< True if Hugging Face stores it as [columns, rows]
  int64_t elements() const { return columns == 0 ? rows : rows * columns; }
  bool operator==(const TensorSchema&) const = default;
};

struct Schema {
  std::vector<UnitSchema> units;
  std::vector<TensorSchema> tensors;  ///< by unit and offset; the first of each unit begins at 0
  bool operator==(const Schema&) const = default;
};

Schema make_schema(const std::vector<UnitSpec>& units);
/// Throws UserError(bad_content) beginning with `place` unless sizes are valid, names are usable and unique, and
/// tensors are consecutive in their units.
void check_schema(const Schema& schema, const std::string& place);
/// Describes the differences for the user; empty if both are equal.
std::string difference(const Schema& stored, const Schema& wanted);
/// The same for names and shapes of the tensors alone, whatever their units.
std::string tensor_difference(const Schema& stored, const Schema& wanted);

/// Elements [begin, end) of one kind of state of a unit, inside one tensor (with the padding after it).
struct StateRange {
  StateKind state = StateKind::master;
  int64_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes() const { return (end - begin) * state_bytes; }
  bool operator==(const StateRange&) const = default;
};
/// Returns everything that shard `shard` of `shards` holds: by kind, unit and element.
std::vector<StateRange> ranges_of_shard(const Schema& schema, int64_t shard, int64_t shards);

}  // namespace llmtrain
