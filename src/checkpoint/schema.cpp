#include "checkpoint/schema.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {
namespace {

/// Largest size of a unit: bytes of a few kinds of state still fit.
constexpr int64_t max_elements = std::numeric_limits<int64_t>::max() / 64;
constexpr int64_t max_blocks = int64_t{1} << 16;

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw UserError(ExitCode::bad_content, place + ": " + what);
}

/// Names become names of HDF5 groups and datasets.
void check_name(const std::string& name, bool slash, const std::string& place) {
  const bool bad =
      name.empty() || name.size() > 1000 || name == "." || name.front() == '/' ||
      std::ranges::any_of(name, [&](char c) { return static_cast<unsigned char>(c) < 0x20 || (!slash && c == '/'); });
  if (bad) refuse(place, fmt::format("{} is not the name of a tensor or unit", printable(name)));
}

void check_tensor(const TensorSchema& tensor, const std::string& place) {
  check_name(tensor.name, false, place);
  const bool sound = tensor.rows > 0 && tensor.columns >= 0 && tensor.offset >= 0 && tensor.rows <= max_elements &&
                     tensor.offset <= max_elements &&
                     (tensor.columns == 0 || tensor.rows <= max_elements / tensor.columns);
  if (!sound) refuse(place, fmt::format("tensor {} has an impossible shape or offset", printable(tensor.name)));
}

/// The names become names of groups, beside those of other content.
void check_states(const StatePlanes& states, const std::string& place) {
  std::set<std::string> names{"index", "units"};
  const bool has_master = !states.empty() && states.front() == StatePlane{"master"};
  if (!has_master || states.size() > max_state_planes) refuse(place, "the states are not those of an optimizer");
  for (const StatePlane& plane : states) {
    check_name(plane.name, false, place);
    if (plane.per_chunk < 0 || plane.per_chunk > chunk_elements || !names.insert(plane.name).second) {
      refuse(place, fmt::format("the state {} is repeated, or has an impossible size", printable(plane.name)));
    }
  }
}

/// A state whose planes are by tensor has their numbers of values in each tensor.
void check_values(const TensorSchema& tensor, const StatePlanes& states, const std::string& place) {
  const bool sound = tensor.per_chunk.size() == (any_by_tensor(states) ? states.size() : 0) &&
                     std::ranges::all_of(tensor.per_chunk, [](int64_t n) { return n >= 0 && n <= chunk_elements; });
  if (!sound) refuse(place, fmt::format("tensor {} has an impossible number of values", printable(tensor.name)));
}

}  // namespace

StatePlane plane_of(const Schema& schema, const StateRange& range) {
  StatePlane plane = schema.states[range.plane];
  if (plane.by_tensor()) plane.per_chunk = schema.tensors[static_cast<size_t>(range.tensor)].per_chunk[range.plane];
  return plane;
}

UnitPlanes Schema::planes_of(int64_t unit) const {
  std::vector<UnitPlanes::Tensor> of_unit;
  for (const TensorSchema& tensor : tensors) {
    if (tensor.unit == unit && !tensor.per_chunk.empty()) of_unit.push_back({tensor.offset, tensor.per_chunk});
  }
  return {states, of_unit};
}

Schema make_schema(const std::vector<UnitSpec>& units, StatePlanes states, int64_t segment_elements) {
  Schema schema;
  schema.states = std::move(states);
  schema.tensor_blocks = count_blocks(units, &UnitSpec::tensor_block);
  schema.expert_blocks = count_blocks(units, &UnitSpec::expert_block);
  const bool by_tensor = any_by_tensor(schema.states);
  for (const UnitSpec& unit : units) {
    const UnitLayout layout(unit, segment_elements);
    std::vector<TensorSchema> tensors;
    for_each_slice(std::span(&unit, 1), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
      const bool vector = param.columns == 1 && !param.decay;
      tensors.push_back({slice.name, static_cast<int64_t>(schema.units.size()), layout.offset(at.param, at.slice),
                         slice.rows, vector ? 0 : param.columns, slice.transposed});
      if (by_tensor) tensors.back().per_chunk = values_per_chunk(schema.states, param, slice);
      tensors.back().block = slice.block;
    });
    std::ranges::sort(tensors, [](const auto& a, const auto& b) { return a.offset < b.offset; });
    schema.tensors.insert(schema.tensors.end(), tensors.begin(), tensors.end());
    schema.units.push_back({unit.name, layout.elements()});
    schema.units.back().tensor_block = unit.tensor_block;
    schema.units.back().expert_block = unit.expert_block;
    const std::vector<int64_t>& borders = layout.segments();
    if (borders.size() > 2) schema.units.back().segment_ends.assign(borders.begin() + 1, borders.end());
  }
  return schema;
}

namespace {

void check_unit(const UnitSchema& unit, const Schema& schema, int64_t total, const std::string& place) {
  check_name(unit.name, false, place);
  if (unit.elements <= 0 || unit.elements % chunk_elements != 0 || unit.elements > max_elements - total) {
    refuse(place, fmt::format("unit {} has an impossible size", printable(unit.name)));
  }
  int64_t end = 0;
  for (const int64_t next : unit.segment_ends) {
    const bool sound = next > end && next % chunk_elements == 0 && next <= unit.elements;
    if (!sound) refuse(place, fmt::format("unit {} has an impossible segment", printable(unit.name)));
    end = next;
  }
  if (!unit.segment_ends.empty() && end != unit.elements) {
    refuse(place, fmt::format("the segments of unit {} do not cover it", printable(unit.name)));
  }
  const auto is_impossible = [](int64_t block, int64_t blocks) {
    return block < -1 || block >= std::max(blocks, int64_t{1}) || (block >= 0 && blocks == 1);
  };
  if (is_impossible(unit.tensor_block, schema.tensor_blocks) ||
      is_impossible(unit.expert_block, schema.expert_blocks)) {
    refuse(place, fmt::format("unit {} has an impossible block", printable(unit.name)));
  }
}

bool overlap(const TensorSchema& a, const TensorSchema& b) {
  const TensorBlock at = a.place(), there = b.place();
  const auto columns = [](const TensorSchema& tensor) { return std::max<int64_t>(tensor.columns, 1); };
  return at.first_row < there.first_row + b.rows && there.first_row < at.first_row + a.rows &&
         at.first_column < there.first_column + columns(b) && there.first_column < at.first_column + columns(a);
}

/// Checks that the blocks of one tensor have one whole shape and orientation, and are all of it.
void check_blocks(const std::vector<const TensorSchema*>& blocks, const std::string& place) {
  const TensorSchema& first = *blocks.front();
  const auto check = [&](bool sound, const char* what) {
    if (!sound) refuse(place, fmt::format("tensor {} {}", printable(first.name), what));
  };
  check(blocks.size() == 1 || first.block, "is repeated");
  const TensorBlock whole = first.place();
  check(whole.rows > 0 && whole.columns > 0 && whole.rows <= max_elements && whole.columns <= max_elements / whole.rows,
        "has an impossible shape");
  int64_t elements = 0;
  for (const TensorSchema* block : blocks) {
    const TensorBlock at = block->place();
    const bool same = at.rows == whole.rows && at.columns == whole.columns && block->block && first.block &&
                      block->transposed == first.transposed && (block->columns == 0) == (first.columns == 0);
    const bool inside = at.first_row >= 0 && at.first_column >= 0 && at.first_row <= at.rows - block->rows &&
                        at.first_column <= at.columns - std::max<int64_t>(block->columns, 1);
    check((same || blocks.size() == 1) && inside, "has an impossible block");
    elements += std::min(block->elements(), max_elements - elements);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) check(!overlap(*blocks[i], *blocks[j]), "has blocks that overlap");
  }
  check(elements == whole.rows * whole.columns, "is not whole");
}

}  // namespace

void check_schema(const Schema& schema, const std::string& place) {
  check_states(schema.states, place);
  if (std::min(schema.tensor_blocks, schema.expert_blocks) < 1 ||
      std::max(schema.tensor_blocks, schema.expert_blocks) > max_blocks) {
    refuse(place, "the number of blocks is impossible");
  }
  std::set<std::string_view> names;
  int64_t total = 0;
  for (const UnitSchema& unit : schema.units) {
    check_unit(unit, schema, total, place);
    total += unit.elements;
    if (!names.insert(unit.name).second) refuse(place, fmt::format("unit {} is repeated", printable(unit.name)));
  }
  int64_t unit = -1, end = 0;
  for (const TensorSchema& tensor : schema.tensors) {
    check_tensor(tensor, place);
    check_values(tensor, schema.states, place);
    const bool next = tensor.unit == unit + 1 && tensor.offset == 0;
    const bool behind = tensor.unit == unit && tensor.offset >= end;
    if (!(next || behind) || static_cast<size_t>(tensor.unit) >= schema.units.size() ||
        tensor.offset + tensor.elements() > schema.units[static_cast<size_t>(tensor.unit)].elements) {
      refuse(place, fmt::format("tensor {} overlaps another or is outside its unit", printable(tensor.name)));
    }
    unit = tensor.unit;
    end = tensor.offset + tensor.elements();
  }
  if (unit + 1 != static_cast<int64_t>(schema.units.size()) || unit < 0) refuse(place, "a unit has no tensors");
  for (const auto& blocks : tensors_in_blocks(schema)) check_blocks(blocks, place);
}

std::vector<std::vector<const TensorSchema*>> tensors_in_blocks(const Schema& schema) {
  std::vector<std::vector<const TensorSchema*>> all;
  std::map<std::string_view, size_t> numbers;
  for (const TensorSchema& tensor : schema.tensors) {
    const auto [known, is_new] = numbers.emplace(tensor.name, all.size());
    if (is_new) all.emplace_back();
    all[known->second].push_back(&tensor);
  }
  return all;
}

std::string difference(const Schema& stored, const Schema& wanted) {
  const bool same_values =
      std::ranges::equal(stored.tensors, wanted.tensors, {}, &TensorSchema::per_chunk, &TensorSchema::per_chunk);
  if (stored == wanted && same_values) return {};
  if (stored.tensor_blocks != wanted.tensor_blocks) {
    return fmt::format("its matrices are divided into {} block{}, those of this run into {} (parallel.tensor_blocks)",
                       stored.tensor_blocks, stored.tensor_blocks == 1 ? "" : "s", wanted.tensor_blocks);
  }
  if (stored.expert_blocks != wanted.expert_blocks) {
    return fmt::format("its experts are divided into {} block{}, those of this run into {} (parallel.expert)",
                       stored.expert_blocks, stored.expert_blocks == 1 ? "" : "s", wanted.expert_blocks);
  }
  if (stored == wanted) return "its states have different numbers of values";
  if (stored.states != wanted.states) {
    const auto names = [](const StatePlanes& states) {
      std::vector<std::string> all;
      for (const StatePlane& s : states) all.push_back(fmt::format("{} ({})", printable(s.name), name_of(s.dtype)));
      return fmt::format("{}", fmt::join(all, ", "));
    };
    return fmt::format("it has the state {} of another optimizer instead of {}", names(stored.states),
                       names(wanted.states));
  }
  const std::string tensors = tensor_difference(stored, wanted);
  return tensors.empty() ? "the tensors are divided into units differently" : tensors;
}

std::string tensor_difference(const Schema& stored, const Schema& wanted) {
  const auto by_name = [](const Schema& schema) {
    std::map<std::string, TensorBlock> tensors;
    for (const TensorSchema& tensor : schema.tensors) tensors.emplace(tensor.name, tensor.place());
    return tensors;
  };
  const auto has = by_name(stored), needs = by_name(wanted);
  std::vector<std::string> found;
  for (const auto& [name, tensor] : needs) {
    const auto match = has.find(name);
    if (match == has.end()) {
      found.push_back(name + " is missing");
    } else if (match->second.rows != tensor.rows || match->second.columns != tensor.columns) {
      found.push_back(fmt::format("{} is {} x {} instead of {} x {}", name, match->second.rows, match->second.columns,
                                  tensor.rows, tensor.columns));
    }
  }
  for (const auto& [name, tensor] : has) {
    if (!needs.contains(name)) found.push_back(printable(name) + " is not in this model");
  }
  if (found.empty()) return {};
  const size_t shown = std::min<size_t>(found.size(), 5);
  const std::vector<std::string> first(found.begin(), found.begin() + static_cast<ptrdiff_t>(shown));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     found.size() > shown ? fmt::format(" and {} more differences", found.size() - shown) : "");
}

std::vector<ShardBorders> parts_of_shard(const UnitSchema& unit, int64_t shard, const Sharding& shards) {
  std::vector<ShardBorders> parts;
  if (shard % shards.ranks_of_blocks() != shards.owner_of(unit)) return parts;
  int64_t begin = 0;
  const std::vector<int64_t> whole{unit.elements};
  for (const int64_t end : unit.segment_ends.empty() ? whole : unit.segment_ends) {
    const ShardBorders own = borders_of_shard(end - begin, shard / shards.ranks_of_blocks(), shards.of_unit());
    if (own.begin < own.end) parts.push_back({begin + own.begin, begin + own.end});
    begin = end;
  }
  return parts;
}

namespace {

/// The number of the shard that holds an element of a segment of `elements`, among those that hold the unit.
int64_t shard_at(int64_t element, int64_t elements, int64_t shards) {
  int64_t first = 0, last = shards - 1;  // it is one of these
  while (first < last) {
    const int64_t middle = first + (last - first) / 2;
    if (element < borders_of_shard(elements, middle, shards).end) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace

void mark_shards(const UnitSchema& unit, const ShardBorders& elements, const Sharding& shards,
                 std::vector<uint8_t>& marks) {
  const int64_t of_unit = shards.of_unit(), owner = shards.owner_of(unit);
  int64_t begin = 0;
  const std::vector<int64_t> whole{unit.elements};
  for (const int64_t end : unit.segment_ends.empty() ? whole : unit.segment_ends) {
    const int64_t from = std::max(begin, elements.begin), to = std::min(end, elements.end);
    if (from < to) {
      const int64_t last = shard_at(to - 1 - begin, end - begin, of_unit);
      for (int64_t number = shard_at(from - begin, end - begin, of_unit); number <= last; ++number) {
        marks[static_cast<size_t>(number * shards.ranks_of_blocks() + owner)] = 1;
      }
    }
    begin = end;
  }
}

std::vector<StateRange> ranges_of_shard(const Schema& schema, int64_t shard, const Sharding& shards) {
  std::vector<StateRange> ranges;
  std::vector<ShardBorders> parts;
  int64_t unit = -1;
  for (size_t t = 0; t < schema.tensors.size(); ++t) {
    const TensorSchema& tensor = schema.tensors[t];
    const UnitSchema& of = schema.units[static_cast<size_t>(tensor.unit)];
    const bool last = t + 1 == schema.tensors.size() || schema.tensors[t + 1].unit != tensor.unit;
    if (std::exchange(unit, tensor.unit) != tensor.unit) parts = parts_of_shard(of, shard, shards);
    for (const ShardBorders& own : parts) {
      const int64_t begin = std::max(tensor.offset, own.begin);
      const int64_t end = std::min(last ? of.elements : schema.tensors[t + 1].offset, own.end);
      if (begin < end) ranges.push_back({master_plane, static_cast<int64_t>(t), begin, end});
    }
  }
  const size_t each = ranges.size();
  const auto whole_chunks = [](int64_t e) { return (e + chunk_elements - 1) / chunk_elements * chunk_elements; };
  for (size_t plane = master_plane + 1; plane < schema.states.size(); ++plane) {
    for (size_t r = 0; r < each; ++r) {
      StateRange range = ranges[r];
      range.plane = plane;
      if (!schema.states[plane].by_element()) {
        range.begin = whole_chunks(range.begin);
        range.end = whole_chunks(range.end);
      }
      if (range.begin < range.end && plane_of(schema, range).per_chunk > 0) ranges.push_back(range);
    }
  }
  return ranges;
}

}  // namespace llmtrain
