#pragma once
// Description of a model's parameters, before any memory exists, and of the state of each of their elements.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/quantization.hpp"

namespace llmtrain {

/// Chunk size. Sums and hashes over parameters are formed by chunks of this many elements; every tensor starts at a
/// multiple of it and shard borders are multiples of it, so that no border affects a bit.
inline constexpr int64_t chunk_elements = 256;

struct ParamSpec;
struct ParamSlice;

/// A plane of the state that an optimizer keeps for trained units: `per_chunk` values of a dtype for each chunk. A
/// state of one value per element is one plane; a quantised one is several, such as {"m", u8} and {"m.scale", f32, 1}.
/// Tensors may differ: then per_chunk is 0, and a function returns the number, 0 to 256, for the chunks that begin in a
/// slice (UnitPlanes).
struct StatePlane {
  using OfTensor = int64_t (*)(const ParamSpec& param, const ParamSlice& slice);

  std::string name;  ///< in checkpoints
  DType dtype = DType::f32;
  int64_t per_chunk = chunk_elements;
  OfTensor of_tensor = nullptr;  ///< null in planes that come from a checkpoint

  bool by_tensor() const { return per_chunk == 0; }
  bool by_element() const { return per_chunk == chunk_elements; }
  int64_t values(int64_t elements) const {
    return elements / chunk_elements * per_chunk +
           (elements % chunk_elements * per_chunk + chunk_elements - 1) / chunk_elements;
  }
  int64_t bytes(int64_t elements) const { return values(elements) * static_cast<int64_t>(size_of(dtype)); }
  /// Number of elements whose values fit into this many bytes: whole chunks, but in a smaller buffer single elements if
  /// they have a value each.
  int64_t elements_in(int64_t bytes_of_buffer) const {
    const int64_t chunks = bytes_of_buffer / bytes(chunk_elements);
    return chunks > 0 || !by_element() ? chunks * chunk_elements : bytes_of_buffer / bytes(1);
  }
  bool operator==(const StatePlane& other) const {
    return name == other.name && dtype == other.dtype && per_chunk == other.per_chunk;
  }
};

/// All planes, in their order in memory and files. The first is the fp32 master; weights, which are the rounded master,
/// are not among them.
using StatePlanes = std::vector<StatePlane>;
inline constexpr size_t master_plane = 0;
inline constexpr size_t max_state_planes = 8;

/// Planes of one fp32 value per element.
inline StatePlanes fp32_planes(const std::vector<std::string>& names) {
  StatePlanes planes;
  for (const std::string& name : names) planes.push_back({name});
  return planes;
}
/// Planes of checkpoints that do not list theirs.
inline StatePlanes master_and_moments() { return fp32_planes({"master", "m", "v"}); }

/// Initialisation of a parameter. Random values are a function of (seed, slice name, element of the external tensor).
struct Initializer {
  enum class Kind : uint8_t { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  double width = 0;  ///< standard deviation, or bound

  static Initializer zeros() { return {Kind::zeros, 0}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double std) { return {Kind::normal, std}; }
  /// Between -bound and bound.
  static Initializer uniform(double bound) { return {Kind::uniform, bound}; }
};

/// Blocks of split matrices, or of experts, that a rank has: [first, first + count) of `blocks`.
struct TensorShare {
  int64_t blocks = 1, first = 0, count = 1;
  bool splits() const { return blocks > 1; }
};

/// The one of `ranks`, each with as many consecutive blocks of `blocks`, that has a block; 0 for -1, which all have.
inline int64_t rank_of_block(int64_t block, int64_t blocks, int64_t ranks) {
  return block < 0 ? 0 : block * ranks / blocks;
}

/// Place of a slice in its external tensor, of which it is a block: from (first_row, first_column) on, in a matrix
/// [rows, columns] as this program stores it, before ParamSlice::transposed.
struct TensorBlock {
  int64_t first_row = 0, first_column = 0;
  int64_t rows = 0, columns = 0;
  bool operator==(const TensorBlock&) const = default;
};

/// Rows [first_row, first_row + rows) of a parameter under its external (Hugging Face) name.
struct ParamSlice {
  std::string name;
  int64_t first_row;
  int64_t rows;
  bool transposed = false;  ///< stored externally as [columns, rows] (GPT-2's Conv1D)
  bool fixed = false;       ///< keeps its values in a trained unit: its gradient is zero, and no decay applies
  std::optional<TensorBlock> block = {};  ///< a part of the external tensor, which other slices have the rest of
};

/// One tensor of a unit. Matrices are [out, in], row-major; products that share an input (q, k, v; gate, up) are one
/// matrix of consecutive row blocks, so that a slice is a plain range of elements.
struct ParamSpec {
  std::string name;
  int64_t rows;
  int64_t columns = 1;  ///< 1 for a vector
  bool decay = false;   ///< weight decay applies (matrices and embeddings)
  Initializer init;
  std::vector<ParamSlice> slices;  ///< cover all rows in order
  double lr_scale = 1;             ///< factor of the learning rate
  bool by_rows = false;            ///< its gradient is written by ParamStore::RowBlocks alone
  bool early = false;              ///< its gradient is written before those of matrices that follow it in the unit
  bool hidden = false;             ///< a matrix of a linear layer between embedding and head, no adapter
  int64_t numel() const { return rows * columns; }
};

/// Parameters that are gathered, reduced and updated together: an embedding, a block, a head.
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
  /// True if used at both ends of the backward pass (a tied embedding): its gradient buffer lives through the whole
  /// pass.
  bool spans_backward = false;
  /// False: frozen. Only the weights are stored, in the compute dtype: no master, moments, gradient or reduction.
  bool trained = true;
  /// True if it is used together with the unit before it: both belong to one layer.
  bool same_layer_as_previous = false;
  /// Storage of a frozen unit of matrices in fewer bits; each slice then starts at a chunk. Not set: the compute dtype.
  std::optional<Quantization> quantization = {};
  int64_t tensor_block = -1;  ///< block of split matrices that has the unit; -1: every rank has it
  /// Block of experts that has the unit, among those of the layer, or of its block of split matrices; -1: it has none,
  /// or every rank has it. The layer uses the units of one block of experts after those of another.
  int64_t expert_block = -1;

  bool has_same_blocks(const UnitSpec& other) const {
    return tensor_block == other.tensor_block && expert_block == other.expert_block;
  }
  int64_t parameters() const {
    int64_t count = 0;
    for (const ParamSpec& param : params) count += param.numel();
    return count;
  }
};

/// The same units, all frozen: for evaluation and generation.
inline std::vector<UnitSpec> frozen(std::vector<UnitSpec> units) {
  for (UnitSpec& unit : units) unit.trained = false;
  return units;
}

}  // namespace llmtrain
