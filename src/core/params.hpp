#pragma once
// What a model says about its parameters, before any memory exists, and the state that each of their elements has.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

/// Sums and hashes over parameters are formed by chunks of this many elements; every tensor starts at a multiple of it
/// and shard borders are multiples of it, so that no border shows in a bit.
inline constexpr int64_t chunk_elements = 256;

/// Kinds of state that every element has, fp32. Weights are not among them: they are the rounded master.
enum class StateKind : uint8_t { master, m, v };
inline constexpr std::array state_kinds{StateKind::master, StateKind::m, StateKind::v};
inline constexpr int64_t state_bytes = 4;  ///< of one element of one kind

/// How a parameter starts. Normal values are a function of (seed, slice name, element), not of the layout.
struct Initializer {
  enum class Kind : uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  double std = 0;

  static Initializer zeros() { return {Kind::zeros, 0}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer normal(double std) { return {Kind::normal, std}; }
};

/// Rows [first_row, first_row + rows) of a parameter under the name the outer world knows (Hugging Face).
struct ParamSlice {
  std::string name;
  int64_t first_row;
  int64_t rows;
  bool transposed = false;  ///< the outer world stores it as [columns, rows] (GPT-2's Conv1D)
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
  int64_t numel() const { return rows * columns; }
};

/// Parameters that are gathered, reduced and updated together: an embedding, a block, a head.
struct UnitSpec {
  std::string name;
  std::vector<ParamSpec> params;
  /// Used at both ends of the backward pass (a tied embedding): its gradient buffer lives through the whole pass.
  bool spans_backward = false;
};

}  // namespace llmtrain
