#include <array>

#include "core/profile.hpp"
#include "kernels/cuda/product_shape.hpp"
#include "kernels/cuda/tile_fill.cuh"
#include "kernels/grouped_products.hpp"
#include "kernels/matmul_checks.hpp"

// Products on tensor cores, a tile of a result by a block. An element is summed along the inner dimension from its
// start, 16 elements at a time, by one warp: its bits depend on its row and column of the operands alone. Sizes are
// arguments of the kernel, since the host has divided the rows among the matrices.

namespace llmtrain::products {

namespace {

using namespace cuda;

/// C [rows, ..] = A B, where the inner dimension has `inner` elements.
template <class H, class C>
struct TileProduct {
  const H *a, *b;
  C* c;
  const H* bias;  ///< of C's columns; may be null
  int rows, inner;
  int first_tile;  ///< number of the first of its tiles of rows
};

/// `a_inner`, `b_inner`: the rows of an operand lie along the inner dimension; else those of A are C's rows, and those
/// of B are C's columns.
template <class H, class C, bool a_inner, bool b_inner>
struct TiledProducts {
  static constexpr int threads = product_threads, side = product_side, depth = product_depth;
  static constexpr int row_blocks = 2, column_pairs = 4;  ///< of a warp: 16 rows and 16 columns each
  std::array<TileProduct<H, C>, most_products> products;
  int count;
  int columns;                       ///< of C
  int a_stride, b_stride, c_stride;  ///< elements to the next row
  bool accumulate;

  template <bool by_inner>
  using Operand = Tile<by_inner ? side : depth, H>;

  /// Starts to load `side` rows or columns of C and `depth` elements along the inner dimension.
  template <bool by_inner>
  __device__ static void fill(const Operand<by_inner>& tile, const H* data, int stride, int outer, int inner, int first,
                              int k) {
    if constexpr (by_inner) {
      fill_tile<depth, threads>(tile, TileRows<H>{data + first, stride, inner, outer - first}, k);
    } else {
      fill_tile<side, threads>(tile, TileRows<H>{data + k, stride, outer, inner - k}, first);
    }
  }

  __device__ int find() const {
    int low = 0, high = count;  // the first tile of `low` is at most this block's, that of `high` is not
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (products[static_cast<size_t>(middle)].first_tile <= static_cast<int>(blockIdx.y) ? low : high) = middle;
    }
    return low;
  }

  __device__ void operator()() const {
    const TileProduct<H, C>& p = products[static_cast<size_t>(find())];
    const int row = (static_cast<int>(blockIdx.y) - p.first_tile) * side, column = static_cast<int>(blockIdx.x) * side;
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes, warp_row = warp / 2 * 16 * row_blocks,
              warp_column = warp % 2 * 16 * column_pairs;
    const bool works = row + warp_row < p.rows && column + warp_column < columns;
    H* memory = dynamic_shared<H>();
    const auto a_of = [&](int stage) { return Operand<a_inner>{memory + 2 * stage * operand_elements}; };
    const auto b_of = [&](int stage) { return Operand<b_inner>{memory + (2 * stage + 1) * operand_elements}; };
    const auto fetch = [&](int stage, int k) {
      fill<a_inner>(a_of(stage), p.a, a_stride, p.rows, p.inner, row, k);
      fill<b_inner>(b_of(stage), p.b, b_stride, columns, p.inner, column, k);
    };

    float c[row_blocks][2 * column_pairs][4] = {};
    int stage = 0;
    if (p.inner > 0) fetch(0, 0);
    for (int k = 0; k < p.inner; k += depth, stage ^= 1) {
      wait_for_copies();
      __syncthreads();  // this stage has arrived, and no thread reads the other one
      if (k + depth < p.inner) fetch(stage ^ 1, k + depth);
      if (!works) continue;
      const Operand<a_inner> a_tile = a_of(stage);
      const Operand<b_inner> b_tile = b_of(stage);
      LLMTRAIN_UNROLL_BY(2)  // leaves registers for two blocks on a multiprocessor
      for (int i = 0; i < depth; i += 16) {
        Pair a[row_blocks][4];
        LLMTRAIN_UNROLL
        for (int r = 0; r < row_blocks; ++r) {
          if constexpr (a_inner) {
            a_tile.a_transposed(a[r], warp_row + 16 * r, i);
          } else {
            a_tile.a(a[r], warp_row + 16 * r, i);
          }
        }
        LLMTRAIN_UNROLL
        for (int n = 0; n < column_pairs; ++n) {
          Pair b[4];
          if constexpr (b_inner) {
            b_tile.b(b, i, warp_column + 16 * n);
          } else {
            b_tile.b_transposed(b, warp_column + 16 * n, i);
          }
          const Pair low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
          LLMTRAIN_UNROLL
          for (int r = 0; r < row_blocks; ++r) {
            multiply_add<H>(c[r][2 * n], a[r], low);
            multiply_add<H>(c[r][2 * n + 1], a[r], high);
          }
        }
      }
    }
    if (works) store_tile(p, c, row + warp_row, column + warp_column);
  }

  __device__ void store_tile(const TileProduct<H, C>& p, const float (&c)[row_blocks][2 * column_pairs][4],
                             int first_row, int first_column) const {
    LLMTRAIN_UNROLL
    for (int r = 0; r < 2 * row_blocks; ++r) {
      const int row = first_row + 8 * r + lane() / 4;
      if (row >= p.rows) continue;
      C* to = p.c + int64_t{row} * c_stride;
      LLMTRAIN_UNROLL
      for (int n = 0; n < 2 * column_pairs; ++n) {
        const int column = first_column + 8 * n + lane() % 4 * 2;
        PackOf<2> sums{{c[r / 2][n][r % 2 * 2], c[r / 2][n][r % 2 * 2 + 1]}};
        if (p.bias != nullptr) add(sums, load_pack<2>(p.bias, column, columns));
        if (accumulate) add(sums, load_pack<2>(to, column, columns));
        store_pack(to, column, columns, sums);
      }
    }
  }
  __device__ static void add(PackOf<2>& sums, const PackOf<2>& more) {
    for (int e = 0; e < 2; ++e) sums.v[e] += more.v[e];
  }
};

/// Numbers of a call besides its products.
struct Shape {
  int64_t columns, a_stride, b_stride, c_stride;
  bool accumulate = false;
};

/// Runs as many products at a time as a launch has. product(i): the i-th of `count`, without its first tile.
template <class H, class C, bool a_inner, bool b_inner, class F>
void run_products(const Shape& shape, int64_t count, Stream& stream, const F& product) {
  TiledProducts<H, C, a_inner, b_inner> kernel{};
  kernel.columns = static_cast<int>(shape.columns);
  kernel.a_stride = static_cast<int>(shape.a_stride);
  kernel.b_stride = static_cast<int>(shape.b_stride);
  kernel.c_stride = static_cast<int>(shape.c_stride);
  kernel.accumulate = shape.accumulate;
  for (int64_t first = 0; first < count; first += most_products) {
    kernel.count = static_cast<int>(std::min<int64_t>(count - first, most_products));
    int tiles = 0;
    for (int i = 0; i < kernel.count; ++i) {
      TileProduct<H, C>& p = kernel.products[static_cast<size_t>(i)];
      p = product(first + i);
      p.first_tile = tiles;
      tiles += static_cast<int>(blocks_for(p.rows, product_side));
    }
    launch({blocks_for(shape.columns, product_side), tiles}, stream, kernel, product_shared_bytes);
  }
}

bool runs_together(const Tensor& operand, const Tensor& result, int64_t outputs, int64_t inputs) {
  return operand.dtype != DType::f32 && (result.dtype == DType::f32 || result.dtype == operand.dtype) &&
         multiplies_together(outputs, inputs);
}

/// Products of rows with their matrices, of which each has `inner` elements along the inner dimension.
template <bool backward>
void run_rows(const Tensor& result, const Tensor& rows, std::span<const MatrixRows> matrices, Stream& stream) {
  const int64_t inner = matrices.front().w.dim(backward ? 0 : 1), columns = matrices.front().w.dim(backward ? 1 : 0);
  const Shape shape{columns, rows.dim(1), matrices.front().w.dim(1), result.dim(1)};
  dispatch(rows, result, [&]<class H, class C>(H* a, C* c) {
    if constexpr (!std::is_same_v<H, float>) {
      int64_t before = 0;
      run_products<H, C, false, backward>(shape, std::ssize(matrices), stream, [&](int64_t i) {
        const MatrixRows& m = matrices[static_cast<size_t>(i)];
        const int64_t first = before;
        before += m.rows;
        const H* bias = backward || m.bias.empty() ? nullptr : m.bias.as<H>();
        return TileProduct<H, C>{a + first * shape.a_stride,
                                 m.w.as<H>(),
                                 c + first * shape.c_stride,
                                 bias,
                                 static_cast<int>(m.rows),
                                 static_cast<int>(inner),
                                 0};
      });
    }
  });
}

/// A call's rows beside its matrices.
template <bool backward>
bool try_rows(const char* name, const Tensor& result, const Tensor& rows, std::span<const MatrixRows> matrices,
              Stream& stream) {
  const Tensor& w = matrices.front().w;
  if (!runs_together(rows, result, w.dim(0), w.dim(1))) return false;
  for (const MatrixRows& m : matrices) {
    LLMTRAIN_CHECK(m.bias.empty() || m.bias.dtype == rows.dtype, "biases of a group have the dtype of its matrices");
  }
  const ProfileSpan span(name, [&] {
    Work work = traffic({&result, &rows}, ProductShape{rows.dim(0), w.dim(0), w.dim(1)}.flops());
    work.bytes += static_cast<double>(w.bytes()) * static_cast<double>(matrices.size());
    return work;
  });
  run_rows<backward>(result, rows, matrices, stream);
  return true;
}

}  // namespace

bool forward(const Tensor& y, const Tensor& x, std::span<const MatrixRows> matrices, Stream& stream) {
  return try_rows<false>("grouped_forward", y, x, matrices, stream);
}

bool backward_input(const Tensor& dx, const Tensor& dy, std::span<const MatrixRows> matrices, Stream& stream) {
  return try_rows<true>("grouped_backward_input", dx, dy, matrices, stream);
}

bool backward_weight(std::span<const MatrixGradient> gradients, const Tensor& dy, const Tensor& x, bool accumulate,
                     Stream& stream) {
  const Tensor& dw = gradients.front().dw;
  if (!runs_together(dy, dw, dy.dim(1), x.dim(1))) return false;
  const ProfileSpan span("grouped_backward_weight", [&] {
    Work work = traffic({&dy, &x}, ProductShape{dy.dim(0), dw.dim(0), dw.dim(1)}.flops());
    for (const MatrixGradient& g : gradients) work.bytes += static_cast<double>(g.dw.bytes());
    return work;
  });
  const Shape shape{x.dim(1), dy.dim(1), x.dim(1), x.dim(1), accumulate};
  dispatch(dy, [&]<class H>(H* a) {
    if constexpr (!std::is_same_v<H, float>) {
      run_products<H, float, true, true>(shape, std::ssize(gradients), stream, [&](int64_t i) {
        const MatrixGradient& g = gradients[static_cast<size_t>(i)];
        return TileProduct<H, float>{a + g.first * shape.a_stride + g.first_row,
                                     x.as<H>() + g.first * shape.b_stride,
                                     g.dw.as<float>(),
                                     nullptr,
                                     static_cast<int>(g.dw.dim(0)),
                                     static_cast<int>(g.rows),
                                     0};
      });
    }
  });
  return true;
}

}  // namespace llmtrain::products
