#pragma once
// What a checkpoint holds, independent of ranks: flat units with fp32 state, and the tensors that lie in them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/params.hpp"

namespace llmtrain {

std::string_view name_of(StateKind kind);  // "master", ...

struct UnitSchema {
  std::string name;
  int64_t elements = 0;  ///< whole chunks
  bool operator==(const UnitSchema&) const = default;
};

/// rows * columns consecutive elements of a unit, from `offset` on.
struct TensorSchema {
  std::string name;  ///< Hugging Face's
  int64_t unit = 0;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;      ///< 0 for a vector
  bool transposed = false;  ///< Hugging Face stores it as [columns, rows]
  int64_t elements() const { return columns == 0 ? rows : rows * columns; }
  bool operator==(const TensorSchema&) const = default;
};

struct Schema {
  std::vector<UnitSchema> units;
  std::vector<TensorSchema> tensors;  ///< by unit and offset; the first of each unit begins at 0
  bool operator==(const Schema&) const = default;
};

Schema make_schema(const std::vector<UnitSpec>& units);
/// UserError(bad_content) beginning with `place` unless sizes are sound, names are usable and unique and tensors lie in
/// their units one behind the other.
void check_schema(const Schema& schema, const std::string& place);
/// What the two differ in, for people; empty when they are equal.
std::string difference(const Schema& stored, const Schema& wanted);

/// A run of one kind's elements [begin, end) of a unit, inside one tensor (with the padding behind it).
struct StatePart {
  StateKind state = StateKind::master;
  int64_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes() const { return (end - begin) * state_bytes; }
  bool operator==(const StatePart&) const = default;
};
/// All that shard `shard` of `shards` holds: by kind, unit and element.
std::vector<StatePart> parts_of_shard(const Schema& schema, int64_t shard, int64_t shards);

}  // namespace llmtrain
