#pragma once
// Division of a matrix product into tiles (gemm_plan.cpp), and the product by such a plan (gemm_run.cpp).

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/gemm_pack.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/product_path.hpp"

namespace llmtrain::host {

constexpr int64_t max_k_block = 512;  ///< words along k in one micro-kernel call

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The kernel of the calling thread for a tile; `micro`: oneDNN's micro-kernel.
TileKernel* kernel_of(const TileShape& shape, bool micro);

/// Plan of a shape: its division, and the kernels of whole and border tiles, which are created in the first run. Along
/// k: segments (packed at a time) of k-blocks (one micro-kernel call). Along n: groups of panels; along m: bands of
/// tile rows.
class GemmPlan {
 public:
  GemmPlan(const GemmShape& shape, const ProductKernels& kernels);
  void run(const GemmOperands& operands);
  /// Bytes of workspace() for a run with the current number of threads. Needs no kernels.
  int64_t workspace_bytes() const { return buffer_sizes().bytes(thread_count()); }

 private:
  static constexpr int64_t max_panel_width = 64;

  struct Operands {
    const void* a;
    const void* b;
    void* c;
    const void* bias;
    char* packed_a;
    char* packed_b;
    float* wide_c;
    const void* p;
    const void* q;
    char* packed_p;
    char* packed_q;
    const QuantizedMatrix* quantized;
  };
  /// Currently packed operands: panels [panel, panel + panels), k-blocks [k_block, k_block + k_blocks), tile rows [row,
  /// row + rows).
  struct Part {
    int64_t panel, panels;
    int64_t k_block, k_blocks;
    int64_t row, rows;
  };
  /// One thread's view while it processes tiles.
  struct Worker {
    float* c_tile;
    char* a_block;
    char* b_block;
    char* scratch;
    const TileKernel* configured = nullptr;
    bool good = true;
  };
  enum class Accumulator : uint8_t { direct, tile, shared };  ///< destination of fp32 sums: C, a thread's tile, wide_c

  /// Bytes of a run's buffers beside its operands, each rounded to whole pages.
  struct BufferSizes {
    int64_t packed_a, packed_b, wide_c;
    int64_t packed_p, packed_q;  ///< whole, since the added product's rank is small
    int64_t c_tile, a_block, b_block;
    int64_t own;  ///< bytes per thread: c_tile, a_block, b_block, and scratch of kernels
    int64_t shared() const { return packed_a + packed_b + wide_c + packed_p + packed_q; }
    int64_t bytes(int threads) const { return shared() + threads * own; }
  };

  bool quantized_a() const { return shape_.quantized && swapped_; }
  void cut(bool must_pack_a);
  void cut_thin(bool must_pack_a);
  void make_kernels();
  TileKernel* make_kernel(TileShape shape, bool last_rows, bool last_columns);
  int thread_count() const;
  BufferSizes buffer_sizes() const;
  TileKernel* kernel(bool last_rows, bool last_columns, bool last_k_block, bool add) const {
    return kernels_[(last_rows ? 8u : 0u) | (last_columns ? 4u : 0u) | (last_k_block ? 2u : 0u) | (add ? 1u : 0u)];
  }
  int64_t k_block_length(int64_t k_block) const {
    return k_block + 1 < k_blocks_ ? k_block_ : padded_k_ - k_block * k_block_;
  }
  int64_t a_row_length() const {
    if (shape_.a_columns > 0) return shape_.a_columns;
    return shape_.a_transposed ? shape_.m : shape_.k;
  }
  int64_t c_stride() const { return accumulator_ == Accumulator::tile ? panels_per_tile_ * panel_width_ : shape_.n; }
  char* packed_panel(const Operands& o, int64_t panel, int64_t k_block) const {
    return o.packed_b + (panel * k_blocks_at_a_time_ + k_block) * k_block_ * panel_width_ * panel_element_;
  }
  char* packed_rows(const Operands& o, int64_t row, int64_t k_block) const {
    return o.packed_a + (row * k_blocks_at_a_time_ + k_block) * packed_row_ * tile_rows_ * panel_element_;
  }
  float* sums_of(const Operands& o, const Worker& w, int64_t first_row, int64_t column, int64_t panel_of_tile) const {
    if (accumulator_ == Accumulator::tile) return w.c_tile + panel_of_tile * panel_width_;
    return (accumulator_ == Accumulator::direct ? static_cast<float*>(o.c) : o.wide_c) + first_row * shape_.n + column;
  }
  char* packed_p_rows(const Operands& o, int64_t row) const {
    return o.packed_p + row * tile_rows_ * packed_rank_ * panel_element_;
  }
  char* packed_q_panel(const Operands& o, int64_t panel) const {
    return o.packed_q + panel * panel_width_ * padded_rank_ * panel_element_;
  }
  template <class In, class Panel>
  PanelSource<In, Panel> source(const void* data, int64_t k_block, int64_t j, bool j_contiguous, int64_t stride) const {
    const int64_t k0 = k_block * k_block_;
    const int64_t k_stride = j_contiguous ? stride : 1;
    const int64_t j_stride = j_contiguous ? 1 : stride;
    return {static_cast<const In*>(data) + k0 * k_stride + j * j_stride, k_stride, j_stride,
            std::min(k_block_length(k_block), shape_.k - k0)};
  }
  template <class F>
  void with_types(const F& f) const;
  void pack_b_block(const Operands& o, char* to, int64_t panel, int64_t k_block) const;
  template <class In, class Panel>
  void pack_quantized_b(const Operands& o, char* to, int64_t panel, int64_t k_block) const;
  void pack_b_task(const Operands& o, const Part& part, int64_t task) const;
  void pack_a_task(const Operands& o, const Part& part, int64_t task) const;
  void pack_a_block(const Operands& o, char* to, int64_t row, int64_t k_block) const;
  void pack_added_task(const Operands& o, int64_t task) const;
  void compute(const Operands& o, Worker& w, const Part& part, int64_t task) const;
  void multiply(Worker& w, const TileKernel* kernel, const void* a, const void* b, float* sums) const;
  void add_product(const Operands& o, Worker& w, int64_t row, int64_t panel, float* sums) const;
  void finish_panel(const Operands& o, const float* sums, int64_t row, int64_t panel) const;
  void tile(const Operands& o, Worker& w, const Part& part, int64_t row, int64_t panel, int64_t panels) const;
  void finish(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column, int64_t columns) const;
  void finish_swapped(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                      int64_t columns) const;
  template <class F>
  void with_bias(const void* bias, const F& f) const;

  DType panel_type_;
  bool micro_;
  bool swapped_;                           ///< the product is C^T = B^T A^T
  bool thin_;                              ///< few rows, swapped: they are one panel, and every weight is read once
  GemmShape shape_;                        ///< shape of the product as computed
  int64_t panel_element_ = 4;              ///< bytes
  int64_t panel_width_ = max_panel_width;  ///< columns of a packed B panel
  int64_t padded_k_ = 0;                   ///< even for bf16 panels
  int64_t k_block_ = 0;                    ///< elements
  int64_t packed_row_ = 0;   ///< elements of a row of packed A: a k-block and a cache line, against aliasing
  int64_t padded_rank_ = 0;  ///< of the added product, likewise
  int64_t packed_rank_ = 0;  ///< elements of a packed row of P
  int64_t k_blocks_ = 0;
  int64_t k_blocks_at_a_time_ = 0;
  int64_t tile_rows_ = 0;
  int64_t row_blocks_ = 0;
  int64_t rows_at_a_time_ = 0;  ///< tile rows
  int64_t panels_ = 0;
  int64_t panels_at_a_time_ = 0;
  int64_t panels_per_tile_ = 0;
  bool pack_a_ = false;
  bool share_a_ = true;    ///< false: a tile row is packed by its user, and stays in cache
  bool direct_b_ = false;  ///< B is read in place
  bool share_b_ = true;    ///< false: one tile row; a panel is packed by its user, and stays in cache
  Accumulator accumulator_ = Accumulator::direct;
  int64_t scratch_bytes_ = 0;
  bool made_ = false;
  std::array<TileKernel*, 16> kernels_{};
  std::array<TileKernel*, 4> added_kernels_{};  ///< of the added product, by last_columns + 2 last_rows
};

}  // namespace llmtrain::host
