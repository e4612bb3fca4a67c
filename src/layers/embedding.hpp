#pragma once
#include <string>

#include "layers/context.hpp"

namespace llmtrain {

/// Token embedding, scaled, plus learned positions where the model has them; then dropout.
struct Embedding {
  ParamRef table;      ///< [V, C]
  ParamRef positions;  ///< [P, C] or none
  float scale = 1;     ///< factor on token embeddings, not on positions
  double dropout = 0;
  int32_t padding = -1;  ///< id of the row without a gradient from here; -1: none

  /// x fp32 [N, C].
  void forward(Context& ctx, const Batch& batch, const Tensor& x) const;
  bool is_trained() const { return table.is_trained() || positions.is_trained(); }
  /// Adds to the table's gradient if the head has already written it (tied), else overwrites it.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const;
};

}  // namespace llmtrain
