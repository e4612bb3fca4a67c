#include "kernels/host/product/gemm_plan.hpp"

#include <map>
#include <memory>
#include <utility>

#include "core/error.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain::host {

namespace {

constexpr int64_t max_tile_rows = 128;  ///< a B panel is read from far caches once per tile
/// Rows of weights that few rows multiply at once; fewer if these are longer than a page.
constexpr int64_t thin_tile_rows = 64, thin_tile_long_rows = 32;
constexpr int64_t max_k_blocks = 8;                 ///< k-blocks per segment, which is packed at a time
constexpr int64_t packed_limit = int64_t{8} << 20;  ///< bytes of packed A, and of packed B, at a time
constexpr int64_t enough_tiles = 96;                ///< enough to balance tens of threads
constexpr int64_t max_panels = 8;                   ///< per tile, so that its C stays in the second-level cache
constexpr int64_t long_row_bytes = 4096;            ///< rows of A farther apart than a page are copied
constexpr double small_product = 1 << 17;           ///< multiplications below which other threads are not woken
/// Bytes per thread that kernels may need, planned before the kernels exist.
constexpr int64_t micro_scratch = int64_t{64} << 10;

/// key: true for oneDNN's micro-kernels
using Kernels = std::map<std::pair<bool, TileShape>, std::unique_ptr<TileKernel>>;

/// Kernels belong to the calling thread, like plans. Products that differ only in their rows share all kernels except
/// for the last rows: a process that meets texts of every length keeps kernels for 128 borders, not for every length.
Kernels& kernels_of_thread() {
  static thread_local Kernels kernels;
  return kernels;
}

/// True if one panel holds all rows of a product with a stored [n, k]. Weights are then read once, at the speed of
/// memory, and in place if they have the panel's type.
bool is_thin(const GemmShape& s, int64_t most_rows) {
  return s.b_transposed && !s.a_transposed && !s.accumulate && s.m <= most_rows && s.m < s.n;
}

/// True if C^T = B^T A^T needs less copying: a large transposed B with few rows of A (the head) is then read in place,
/// A is packed, and tiles of C are transposed when stored. A quantised B is packed as it is dequantised, without being
/// transposed.
bool better_swapped(const GemmShape& s, DType panel_type) {
  const int64_t words = s.k * static_cast<int64_t>(size_of(panel_type)) / 4;  // words of a packed row or column
  const bool in_place = panel_type == s.input && (panel_type == DType::f32 || s.k % 2 == 0);
  const bool one_segment = s.k <= max_k_block * max_k_blocks * 4 / static_cast<int64_t>(size_of(panel_type));
  return s.b_transposed && !s.a_transposed && !s.accumulate && in_place && one_segment &&
         s.n * words > s.m * (words + s.n);
}

GemmShape swapped(GemmShape shape) {
  std::swap(shape.m, shape.n);
  return shape;
}

}  // namespace

TileKernel* kernel_of(const TileShape& shape, bool micro) {
  std::unique_ptr<TileKernel>& kernel = kernels_of_thread()[{micro, shape}];
  if (!kernel) kernel = micro ? make_micro_kernel(shape) : make_plain_kernel(shape);
  LLMTRAIN_CHECK(kernel != nullptr, "oneDNN has no kernel for a tile of a matrix product");
  return kernel.get();
}

GemmPlan::GemmPlan(const GemmShape& shape, const ProductKernels& kernels)
    : panel_type_(kernels.operands),
      micro_(kernels.micro),
      swapped_(is_thin(shape, max_panel_width) || better_swapped(shape, panel_type_)),
      thin_(is_thin(shape, max_panel_width)),
      shape_(swapped_ ? swapped(shape) : shape) {
  panel_element_ = static_cast<int64_t>(size_of(panel_type_));
  const auto padded = [&](int64_t k) { return panel_type_ == DType::bf16 ? divide_up(k, 2) * 2 : k; };
  padded_k_ = padded(shape.k);
  padded_rank_ = padded(shape.rank);
  packed_rank_ = divide_up(padded_rank_, 64 / panel_element_) * (64 / panel_element_);
  cut(quantized_a() || shape_.a_transposed || panel_type_ != shape.input || padded_k_ != shape.k);
  if (micro_) scratch_bytes_ = micro_scratch;
}

void GemmPlan::cut(bool must_pack_a) {
  const int64_t longest = max_k_block * 4 / panel_element_;
  k_block_ = std::min(padded_k_, divide_up(divide_up(padded_k_, divide_up(padded_k_, longest)), 64) * 64);
  k_blocks_ = divide_up(padded_k_, k_block_);
  packed_row_ = divide_up(k_block_, 64) * 64 + 64 / panel_element_;
  if (thin_) return cut_thin(must_pack_a);
  k_blocks_at_a_time_ = divide_up(k_blocks_, divide_up(k_blocks_, max_k_blocks));
  const int64_t segment_bytes = k_blocks_at_a_time_ * k_block_ * panel_element_;

  panels_ = divide_up(shape_.n, panel_width_);
  panels_at_a_time_ = std::min(panels_, packed_limit / (segment_bytes * panel_width_));
  panels_per_tile_ = std::min(max_panels, panels_at_a_time_);
  tile_rows_ = max_tile_rows;
  const auto tiles = [&] { return divide_up(shape_.m, tile_rows_) * divide_up(panels_at_a_time_, panels_per_tile_); };
  while (panels_per_tile_ > 2 && tiles() < enough_tiles) panels_per_tile_ = divide_up(panels_per_tile_, 2);
  if (tiles() < enough_tiles) tile_rows_ /= 2;
  if (tiles() < enough_tiles) panels_per_tile_ = 1;
  row_blocks_ = divide_up(shape_.m, tile_rows_);
  direct_b_ = panel_type_ == DType::f32 && shape_.input == DType::f32 && !shape_.b_transposed && !shape_.quantized &&
              shape_.n * panel_element_ < long_row_bytes && (micro_ || shape_.n % plain_columns == 0);
  share_b_ = row_blocks_ > 1 && !direct_b_;

  pack_a_ =
      must_pack_a || (shape_.k * static_cast<int64_t>(size_of(shape_.input)) >= long_row_bytes && long_rows_are_slow());
  rows_at_a_time_ =
      pack_a_ ? std::clamp<int64_t>(packed_limit / (k_blocks_at_a_time_ * packed_row_ * panel_element_ * tile_rows_), 1,
                                    row_blocks_)
              : row_blocks_;
  if (shape_.output != DType::f32 || swapped_) {
    accumulator_ = k_blocks_ > k_blocks_at_a_time_ ? Accumulator::shared : Accumulator::tile;
  }
}

void GemmPlan::cut_thin(bool must_pack_a) {
  panel_width_ = divide_up(shape_.n, 16) * 16;
  k_blocks_at_a_time_ = k_blocks_;
  panels_ = panels_at_a_time_ = panels_per_tile_ = 1;
  const int64_t row_bytes = shape_.k * static_cast<int64_t>(size_of(shape_.input));
  tile_rows_ = row_bytes < long_row_bytes ? thin_tile_rows : thin_tile_long_rows;
  row_blocks_ = rows_at_a_time_ = divide_up(shape_.m, tile_rows_);
  pack_a_ = must_pack_a;
  share_a_ = false;
  accumulator_ = Accumulator::tile;
}

/// Completes the shape of a tile, which is whole or at the last rows or columns; null if there is no such tile.
TileKernel* GemmPlan::make_kernel(TileShape shape, bool last_rows, bool last_columns) {
  const bool exists = (last_rows || row_blocks_ > 1) && (last_columns || panels_ > 1);
  if (!exists) return nullptr;
  shape.m = last_rows ? shape_.m - (row_blocks_ - 1) * tile_rows_ : tile_rows_;
  shape.n = last_columns ? shape_.n - (panels_ - 1) * panel_width_ : panel_width_;
  shape.ldc = c_stride();
  shape.input = panel_type_;
  TileKernel* kernel = kernel_of(shape, micro_);
  scratch_bytes_ = std::max(scratch_bytes_, kernel->scratch_bytes());
  return kernel;
}

void GemmPlan::make_kernels() {
  for (unsigned i = 0; i < kernels_.size(); ++i) {
    const bool border_k_block = (i & 2) != 0;
    TileShape s{};
    s.k = border_k_block ? k_block_length(k_blocks_ - 1) : k_block_;
    s.lda = pack_a_ ? packed_row_ : shape_.k;
    s.ldb = direct_b_ ? shape_.n : panel_width_;
    s.accumulate = (i & 1) != 0;
    const bool may_be_first = k_blocks_ == 1 || !border_k_block;
    const bool adds = s.accumulate ? k_blocks_ > 1 || shape_.accumulate : may_be_first && !shape_.accumulate;
    if (adds && (border_k_block || k_blocks_ > 1)) kernels_[i] = make_kernel(s, (i & 8) != 0, (i & 4) != 0);
  }
  for (unsigned i = 0; shape_.rank > 0 && i < added_kernels_.size(); ++i) {
    TileShape s{};
    s.k = padded_rank_;
    s.lda = packed_rank_;
    s.ldb = panel_width_;
    s.accumulate = true;
    added_kernels_[i] = make_kernel(s, (i & 2) != 0, (i & 1) != 0);
  }
  made_ = true;
}

int GemmPlan::thread_count() const {
  const double multiplications =
      static_cast<double>(shape_.m) * static_cast<double>(shape_.n) * static_cast<double>(shape_.k);
  return multiplications <= small_product ? 1 : host::thread_count();
}

GemmPlan::BufferSizes GemmPlan::buffer_sizes() const {
  const auto pages = [](int64_t bytes) { return divide_up(bytes, workspace_alignment) * workspace_alignment; };
  const int64_t segment = k_blocks_at_a_time_ * panel_element_;  // bytes per element of a k-block
  BufferSizes r{};
  if (pack_a_ && share_a_) r.packed_a = pages(rows_at_a_time_ * tile_rows_ * packed_row_ * segment);
  if (share_b_) r.packed_b = pages(panels_at_a_time_ * panel_width_ * k_block_ * segment);
  if (accumulator_ == Accumulator::shared) r.wide_c = pages(shape_.m * shape_.n * 4);
  if (shape_.rank > 0) {
    r.packed_p = pages(row_blocks_ * tile_rows_ * packed_rank_ * panel_element_);
    r.packed_q = pages(panels_ * panel_width_ * padded_rank_ * panel_element_);
  }
  if (accumulator_ == Accumulator::tile) r.c_tile = tile_rows_ * panels_per_tile_ * panel_width_ * 4;
  if (!share_b_ && !direct_b_) r.b_block = k_block_ * panel_width_ * panel_element_;
  if (pack_a_ && !share_a_) r.a_block = tile_rows_ * packed_row_ * panel_element_;
  r.own = pages(r.c_tile + r.a_block + r.b_block + scratch_bytes_ + 64);
  return r;
}

}  // namespace llmtrain::host
