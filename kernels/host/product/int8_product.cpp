#include "kernels/host/product/int8_product.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "device/processor.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/gemm_plan.hpp"
#include "kernels/host/product/int8_dots.hpp"
#include "kernels/host/product/int8_inputs.hpp"
#include "kernels/host/product/int8_panel.hpp"
#include "kernels/host/product/product_path.hpp"
#include "kernels/host/team_loops.hpp"
#include "kernels/int8_arithmetic.hpp"

namespace llmtrain::host {

namespace {

constexpr int64_t few_rows = 4;  ///< for which packing the weights would cost more than the product
constexpr int64_t tile_rows = 64, tile_columns = 32;  ///< of y that a thread finishes at once
constexpr int64_t wide_at_once = 64;                  ///< columns of x in the compute type that are read at once

constexpr int64_t padded(int64_t columns) { return (columns + int8_padding - 1) / int8_padding * int8_padding; }

constexpr int64_t panel_rows = 128;                     ///< of inputs that a micro-kernel multiplies at once
constexpr int64_t panel_scratch = int64_t{64} << 10;    ///< bytes that it may need
constexpr int64_t max_byte_columns = int64_t{1} << 17;  ///< columns whose sums of signed products fit into 32 bits

/// Layout for `rows` inputs.
Int8Layout layout_of(int64_t rows, int64_t columns) {
  return {rows, columns, rows > few_rows && columns <= max_byte_columns && has_byte_kernels()};
}
int64_t shared_bytes(const Int8Layout& layout) { return layout.head_bytes() + (layout.code_bytes() + 63) / 64 * 64; }
/// Bytes of a thread: a panel of weights, sums, and scratch memory of kernels.
int64_t panel_bytes(int64_t columns) {
  return int8_panel_width * Int8Layout{1, columns, true}.padded_columns() +
         panel_rows * int8_panel_width * static_cast<int64_t>(sizeof(int32_t)) + panel_scratch;
}

void add_dots(const Int8Dots& d, int64_t rows) {
#if defined(__x86_64__)
  static const bool avx512 = processor_has(Instructions::avx512);
  if (avx512) return add_int8_dots_avx512(d, rows);
#endif
  rows == 4 ? Int8DotsOf<Float8, 4>::run(d) : Int8DotsOf<Float8, 1>::run(d);
}

/// Columns [first, first + count) of y.
struct OutputColumns {
  int64_t first, count;
};

template <class T, class Out>
class Int8Product {
 public:
  Int8Product(const Tensor& y, const Int8Inputs<T>& x, const QuantizedMatrix& w, const Tensor& bias,
              const LowRank& added)
      : y_(static_cast<Out*>(y.data)), x_(x), w_(w), bias_(bias), added_(added) {}

  void run(char* memory) const {
    if (x_.layout().bytes) return run_panels(memory);
    parallel_blocks(w_.rows, tile_columns, [this](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < x_.rows(); row += tile_rows) {
        tile({begin, end - begin}, row, std::min(tile_rows, x_.rows() - row));
      }
    });
  }

 private:
  const int8_t* codes(int64_t row) const {
    const QuantizedRows& slice = w_.slice_of(row);
    return reinterpret_cast<const int8_t*>(slice.chunks) + (row - slice.first_row + slice.skipped) * w_.columns;
  }
  float scale(int64_t row) const {
    const QuantizedRows& slice = w_.slice_of(row);
    return slice.table[row - slice.first_row + slice.skipped];
  }
  float bias(int64_t column) const {
    using Half = std::conditional_t<std::is_same_v<T, float>, bf16, T>;  // for a bias that is not fp32
    if (bias_.empty()) return 0;
    return bias_.dtype == DType::f32 ? bias_.as<float>()[column] : load(bias_.as<Half>() + column);
  }

  void tile(const OutputColumns& columns, int64_t first, int64_t rows) const {
    int64_t sums[tile_rows * tile_columns] = {};
    for (int64_t k = 0; k < w_.columns; k += int8_sum_length) add_codes(sums, columns, first, rows, k);
    finish(sums, tile_columns, columns, first, rows);
  }

  /// Scales sums [rows, columns], adds bias and wide products, and stores them.
  template <class Sum>
  void finish(const Sum* sums, int64_t stride, const OutputColumns& columns, int64_t first, int64_t rows) const {
    float wide[tile_rows * tile_columns] = {};
    const int64_t count = x_.outliers() + added_.rank();
    for (int64_t i = 0; i < count; i += wide_at_once) {
      add_wide(wide, columns, first, rows, {i, std::min(wide_at_once, count - i)});
    }
    float scales[tile_columns] = {}, biases[tile_columns] = {};
    for (int64_t c = 0; c < columns.count; ++c) {
      scales[c] = scale(columns.first + c);
      biases[c] = bias(columns.first + c);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Float8 input_scale = Float8{} + x_.scale(first + r);
      for (int64_t c = 0; c < columns.count; c += 8) {
        Float8 sum;
        for (int i = 0; i < 8; ++i) sum[i] = static_cast<float>(sums[r * stride + c + i]);
        // int8_product; a product plus zero is rounded before the sums.
        const Float8 factor = fused(input_scale, load8(scales + c), 0.0f);
        const Float8 product = fused(fused(sum, factor, 0.0f), Float8{} + int8_product_step, 0.0f);
        const Float8 result = product + load8(biases + c) + load8(wide + r * tile_columns + c);
        store_up_to(y_ + (first + r) * w_.rows + columns.first + c, result, columns.count - c);
      }
    }
  }

  /// The kernels of tiles: of whole ones and the last rows, of whole and last blocks, of the first block and others.
  struct Kernels {
    const TileKernel* of[2][2][2];
  };
  Kernels kernels() const {
    const Int8Layout& x = x_.layout();
    const int64_t last_rows = x.padded_rows() - (divide_up(x.rows, panel_rows) - 1) * panel_rows;
    const int64_t last_block = x.padded_columns() - (x.blocks() - 1) * Int8Layout::block;
    Kernels result{};
    for (unsigned i = 0; i < 8; ++i) {
      const TileShape shape{.m = (i & 1) != 0 ? last_rows : panel_rows,
                            .n = int8_panel_width,
                            .k = (i & 2) != 0 ? last_block : Int8Layout::block,
                            .lda = Int8Layout::block_row,
                            .ldb = int8_panel_width,
                            .ldc = int8_panel_width,
                            .input = DType::u8,
                            .accumulate = (i & 4) != 0};
      const TileKernel* kernel = kernel_of(shape, true);
      LLMTRAIN_CHECK(kernel->scratch_bytes() <= panel_scratch, "a micro-kernel needs more memory than is planned");
      result.of[i & 1][i >> 1 & 1][i >> 2] = kernel;
    }
    return result;
  }

  /// Every task packs a panel of weights and multiplies a band of inputs by it.
  void run_panels(char* memory) const {
    const int64_t panels = divide_up(w_.rows, int8_panel_width), row_blocks = divide_up(x_.rows(), panel_rows);
    const int threads = thread_count();
    const int64_t bands = std::clamp<int64_t>(divide_up(2 * threads, panels), 1, row_blocks);
    const int64_t own = panel_bytes(w_.columns);
    const Kernels tiles = kernels();
    static thread_local TeamLoops loops;
    loops.prepare(threads);
    const auto work = [&, &team = loops](int thread) {
      TeamLoops::Member member(team, thread);
      member.share(panels * bands, [&](int64_t task) {
        const int64_t panel = task % panels, band = task / panels;
        multiply_panel(tiles, memory + thread * own, panel * int8_panel_width, row_blocks * band / bands,
                       row_blocks * (band + 1) / bands);
      });
      leave_micro_kernels();
      return member;
    };
    if (threads == 1) return loops.done(work(0));
    const auto end = [&, &team = loops](int thread) {
      const TeamLoops::Member member = work(thread);
#pragma omp barrier
      if (thread == 0) team.done(member);  // the others have seen the number of the first loop
    };
#pragma omp parallel num_threads(threads)
    end(omp_get_thread_num());
  }

  /// Blocks [begin, end) of panel_rows inputs times the weights from row `column` on.
  void multiply_panel(const Kernels& tiles, char* memory, int64_t column, int64_t begin, int64_t end) const {
    const int64_t count = std::min(int8_panel_width, w_.rows - column), blocks = x_.layout().blocks();
    auto* panel = reinterpret_cast<uint32_t*>(memory);
    auto* sums = reinterpret_cast<int32_t*>(memory + int8_panel_width * x_.layout().padded_columns());
    char* scratch = reinterpret_cast<char*>(sums + panel_rows * int8_panel_width);
    int32_t of_rows[int8_panel_width];
    for (int64_t j = 0; j < int8_panel_width; j += 8) {
      const int8_t* rows[8];
      for (int64_t i = 0; i < 8; ++i) rows[i] = codes(column + std::min(j + i, count - 1));
      Words8 row_sums{};
      pack_int8_rows(panel + j, rows, w_.columns, x_.layout().padded_columns(), row_sums);
      std::memcpy(of_rows + j, &row_sums, sizeof row_sums);
    }
    const TileKernel* configured = nullptr;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * panel_rows, rows = std::min(panel_rows, x_.rows() - first);
      for (int64_t k = 0; k < blocks; ++k) {
        const bool last_rows = first + panel_rows >= x_.rows(), last_block = k + 1 == blocks;
        const TileKernel* kernel = tiles.of[last_rows ? 1 : 0][last_block ? 1 : 0][k > 0 ? 1 : 0];
        if (kernel != configured) kernel->configure_thread();
        configured = kernel;
        const bool good =
            kernel->run(x_.bytes(first, k), panel + k * Int8Layout::block / 4 * int8_panel_width, sums, scratch);
        LLMTRAIN_CHECK(good, "oneDNN failed in a product of codes");
      }
      for (int64_t r = 0; r < rows; ++r) {  // inputs have 128 added, with which sums may wrap around
        for (int64_t c = 0; c < int8_panel_width; ++c) {
          int32_t& sum = sums[r * int8_panel_width + c];
          sum = static_cast<int32_t>(static_cast<uint32_t>(sum) - 128U * static_cast<uint32_t>(of_rows[c]));
        }
      }
      for (int64_t r = 0; r < rows; r += tile_rows) {
        for (int64_t c = 0; c < count; c += tile_columns) {
          finish(sums + r * int8_panel_width + c, int8_panel_width, {column + c, std::min(tile_columns, count - c)},
                 first + r, std::min(tile_rows, rows - r));
        }
      }
    }
  }

  void add_codes(int64_t* sums, const OutputColumns& columns, int64_t first, int64_t rows, int64_t k) const {
    const int64_t count = std::min(int8_sum_length, w_.columns - k);
    alignas(64) int16_t w[tile_columns * int8_sum_length];
    for (int64_t c = 0; c < (columns.count + 1) / 2 * 2; ++c) {
      int16_t* to = w + c * int8_sum_length;
      const int8_t* from = c < columns.count ? codes(columns.first + c) + k : nullptr;
      if (from != nullptr) std::copy_n(from, count, to);
      std::fill(to + (from == nullptr ? 0 : count), to + padded(count), int16_t{0});
    }
    const int64_t stride = x_.layout().padded_columns();
    for (int64_t r = 0; r < rows;) {
      const int64_t together = r + 4 <= rows ? 4 : 1;
      for (int64_t c = 0; c < columns.count; c += 2) {
        add_dots({x_.codes(first + r) + k, stride, w + c * int8_sum_length, int8_sum_length, padded(count),
                  sums + r * tile_columns + c, tile_columns},
                 together);
      }
      r += together;
    }
  }

  /// Adds products in the compute type: those of outlier columns and, after them, of the added product.
  void add_wide(float* sums, const OutputColumns& columns, int64_t first, int64_t rows,
                const OutputColumns& inputs) const {
    const int64_t outliers = x_.outliers(), rank = added_.rank();
    const auto* left = static_cast<const T*>(added_.left.data);
    const auto* right = static_cast<const T*>(added_.right.data);
    alignas(64) float w[wide_at_once * tile_columns] = {};
    for (int64_t i = 0; i < inputs.count; ++i) {
      const int64_t input = inputs.first + i;
      for (int64_t c = 0; c < columns.count; ++c) {
        const int64_t row = columns.first + c;
        float value = 0;
        if (input < outliers) {
          const auto code = static_cast<float>(codes(row)[x_.column(input)]);
          value = rounded_to(dtype_of<T>, rounded_product(rounded_product(code, scale(row)), int8_step));
        } else {
          value = load(right + row * rank + input - outliers);
        }
        w[i * tile_columns + c] = value;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* to = sums + r * tile_columns;
      for (int64_t i = 0; i < inputs.count; ++i) {
        const int64_t input = inputs.first + i;
        const float x =
            input < outliers ? x_.value(first + r, input) : load(left + (first + r) * rank + input - outliers);
        for (int64_t c = 0; c < tile_columns; ++c) to[c] += x * w[i * tile_columns + c];
      }
    }
  }

  Out* y_;
  const Int8Inputs<T>& x_;
  const QuantizedMatrix& w_;
  const Tensor& bias_;
  const LowRank& added_;
};

}  // namespace

int64_t int8_workspace_bytes(int64_t rows, int64_t columns) {
  const auto bytes = [&](int64_t n) {
    const Int8Layout layout = layout_of(n, columns);
    return shared_bytes(layout) + (layout.bytes ? thread_count() * panel_bytes(columns) : 0);
  };
  return std::max(bytes(rows), bytes(std::min(rows, few_rows)));
}

void int8_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, ProductRole role,
                  const LowRank& added) {
  const QuantizedMatrix& matrix = w.quantized();
  dispatch(y, x, [&]<class Out, class T>(Out*, const T*) {
    const Int8Layout layout = layout_of(x.dim(0), x.dim(1));
    char* memory = workspace(int8_workspace_bytes(x.dim(0), x.dim(1)));
    const Int8Inputs<T> inputs(x, static_cast<float>(matrix.format.outlier_threshold), role != ProductRole::training,
                               layout, memory);
    Int8Product<T, Out>(y, inputs, matrix, bias, added).run(memory + shared_bytes(layout));
  });
}

}  // namespace llmtrain::host
