#pragma once
#include <string>
#include <vector>

#include "layers/adapter.hpp"
#include "layers/context.hpp"

namespace llmtrain {

/// Rows of a fused matrix under their external names, e.g. {"...q_proj", 64}, {"...k_proj", 16}, {"...v_proj", 16}. The
/// suffixes .weight and .bias are appended.
struct LinearPart {
  std::string name;
  int64_t rows;
  bool transposed = false;  ///< true if files store the transpose
  /// Rows, one below the other, each of which is split; empty: all are one section.
  std::vector<int64_t> sections = {};
};

/// A linear layer as a whole.
struct LinearShape {
  std::vector<LinearPart> parts;
  int64_t in;
  bool bias;
  double std;  ///< initial standard deviation

  int64_t out() const {
    int64_t rows = 0;
    for (const LinearPart& part : parts) rows += part.rows;
    return rows;
  }
};

/// Block `index` of a matrix that is split into `blocks`.
struct LinearBlock {
  /// A block has some of the outputs, of each section of each part as many, or some of the inputs; then its output is a
  /// term of a sum over blocks, and the bias, B and magnitudes of adapters belong to the sum.
  enum class Side : uint8_t { outputs, inputs };

  Side side;
  int64_t index, blocks;
};

/// A parameter that all blocks of a layer share.
struct SharedParam {
  ParamRef ref;
  int64_t rows, columns;  ///< 1 column: a vector
};

/// y = x W^T + b. Several projections of one input are one Linear with several slices, each of which may have an
/// adapter.
struct Linear {
  /// Consecutive rows.
  struct Rows {
    int64_t first, count;
  };

  ParamRef weight;
  ParamRef bias;
  std::vector<Rows> fixed_weight, fixed_bias;  ///< rows that keep their values where others are trained
  int64_t in = 0;
  int64_t out = 0;
  std::optional<QuantizedType> quantized;  ///< storage of the weight, if it has fewer bits
  ParamRef a;                              ///< [R, in]: A of all adapters, one below the other
  std::vector<Adapter> adapters;           ///< all with magnitudes or none, and all with the same dropout
  size_t kept_norms = 0;                   ///< index in KvCache::norms
  std::optional<LinearBlock> block = {};   ///< set if this is one
  bool sums_input_gradient = false;        ///< the gradient of its input is fp32, a term of a sum

  static Linear declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std,
                        const AdapterRule& rule = {});

  /// Declares a bias of a layer that was declared without one.
  void declare_bias(UnitBuilder& unit, const std::vector<LinearPart>& parts) {
    declare_bias(unit, parts, std::nullopt);
  }

  /// Declares what the blocks of a split layer share: of blocks of outputs the adapters' A, of blocks of inputs the
  /// bias and what else belongs to the sum.
  static Linear declare_shared(UnitBuilder& unit, const LinearShape& shape, LinearBlock::Side side,
                               const AdapterRule& rule);
  /// Declares a block, in units of its own.
  static Linear declare_block(UnitBuilder& unit, const LinearShape& shape, const LinearBlock& block,
                              const Linear& shared, const AdapterRule& rule);

  /// Bytes of workspace that the kernels need; `output` is y's dtype.
  int64_t workspace_bytes(DType compute, DType output, int64_t rows, bool training) const;
  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const;
  /// x [N, in] -> y [N, out].
  void forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) const;
  bool is_trained() const { return weight.is_trained() || bias.is_trained() || a.is_trained(); }
  /// Computes the gradients of trained parameters, and dx [N, in] unless it is empty.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) const;
  /// FLOPs of the products of one token's forward and backward pass, with or without the gradient of the input.
  double product_flops(bool input_gradient) const;
  /// Compute the gradient of the weight or bias if it is trained.
  void backward_weight(Context& ctx, const Tensor& dy, const Tensor& x) const;
  void backward_bias(Context& ctx, const Tensor& dy) const;
  /// Zeroes the fixed rows of the weight's gradient; `gradient` has its rows from `first_row` on.
  void zero_fixed_rows(const Tensor& gradient, int64_t first_row, Stream& stream) const;

  /// Declares the adapters of a block, with what its blocks share.
  void declare_block_adapters(UnitBuilder& unit, const LinearShape& shape, const LinearBlock& of, const Linear& shared,
                              const AdapterRule& rule);
  bool is_term() const { return block && block->side == LinearBlock::Side::inputs; }
  /// Appends the trained parameters of a block that all blocks share.
  void append_shared(std::vector<SharedParam>& shared) const;
  bool has_magnitudes() const { return !adapters.empty() && adapters.front().magnitude.exists(); }

  /// Adds the adapters that the rule has for these rows.
  void declare_adapters(UnitBuilder& unit, const std::vector<LinearPart>& parts, const AdapterRule& rule);

 private:
  void zero_adapter_gradients(Context& ctx) const;
  /// Declare the weight or bias of the layer, or of a block of it.
  void declare_weight(UnitBuilder& unit, const std::vector<LinearPart>& parts, double std,
                      const std::optional<LinearBlock>& of);
  void declare_bias(UnitBuilder& unit, const std::vector<LinearPart>& parts, const std::optional<LinearBlock>& of);
};

}  // namespace llmtrain
