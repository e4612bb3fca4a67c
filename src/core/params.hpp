#pragma once
// Description of a model's parameters, before any memory exists, and of the state of each of their elements.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

/// Chunk size. Sums and hashes over parameters are formed by chunks of this many elements; every tensor starts at a
/// multiple of it and shard borders are multiples of it, so that no border affects a bit.
inline constexpr int64_t chunk_elements = 256;

/// Kinds of state that every element has, in fp32. Weights are not among them: they are the rounded master.
enum class StateKind : uint8_t { master, m, v };
inline constexpr std::array state_kinds{StateKind::master, StateKind::m, StateKind::v};
inline constexpr int64_t state_bytes = 4;  ///< bytes per element and kind

/// Initialisation of a parameter. Random values are a function of (seed, slice name, element), not of the layout.
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

/// Rows [first_row, first_row + rows) of a parameter under its external (Hugging Face) name.
struct ParamSlice {
  std::string name;
  int64_t first_row;
  int64_t rows;
  bool transposed = false;  ///< stored externally as [columns, rows] (GPT-2's Conv1D)
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
  bool beside = false;

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
