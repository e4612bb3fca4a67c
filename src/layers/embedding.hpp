#pragma once
#include <string>
#include <vector>

#include "layers/adapter.hpp"
#include "layers/context.hpp"

namespace llmtrain {

/// Adapter of a table: its rows become those of W + scale A B^T. Without dropout, as in PEFT.
struct TableAdapter {
  ParamRef a;  ///< [rows of the table, rank], the transpose of PEFT's lora_embedding_A; starts at zero
  ParamRef b;  ///< [C, rank]; starts at normal values
  int64_t rank = 0;
  float scale = 0;

  bool exists() const { return a.exists(); }
  /// Adds the adapter that the rule has for a table of `rows` rows; none: an empty one.
  static TableAdapter declare(UnitBuilder& unit, const std::string& module, int64_t rows, int64_t channels,
                              const AdapterRule& rule);
};

/// Token embedding, scaled, plus learned positions where the model has them; then dropout.
struct Embedding {
  /// Rows [first, ...) of the table.
  struct TableBlock {
    ParamRef rows;
    int64_t first;
  };

  ParamRef table;                       ///< [V, C]; none if it is split
  std::vector<TableBlock> blocks = {};  ///< of a split table, those of this rank
  ParamRef positions;                   ///< [P, C] or none
  TableAdapter table_adapter = {}, positions_adapter = {};
  float scale = 1;  ///< factor on token embeddings, not on positions
  double dropout = 0;
  int32_t padding = -1;  ///< id of the row without a gradient from here; -1: none

  /// x fp32 [N, C].
  void forward(Context& ctx, const Batch& batch, const Tensor& x) const;
  bool trains_table() const { return table.is_trained() || (!blocks.empty() && blocks.front().rows.is_trained()); }
  bool has_adapters() const { return table_adapter.exists() || positions_adapter.exists(); }
  bool is_trained() const {
    return trains_table() || positions.is_trained() || table_adapter.a.is_trained() || positions_adapter.a.is_trained();
  }
  /// Adds to the table's gradient if the head has already written it (tied), else overwrites it. Weights of adapters
  /// are acquired.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const;

  /// Bytes that both passes over this many rows of C channels need for adapters and a split table.
  int64_t scratch_bytes(DType compute, int64_t rows, int64_t channels, const TensorShare& share = {}) const;
  int64_t workspace_bytes(DType compute, int64_t rows, int64_t channels, bool training) const;

 private:
  void sum_blocks(Context& ctx, const Batch& batch, const Tensor& x) const;
  void backward_rows(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const;
};

}  // namespace llmtrain
