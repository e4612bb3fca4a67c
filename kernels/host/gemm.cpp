#include "kernels/host/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "kernels/host/buffer.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/gemm_pack.hpp"
#include "kernels/host/gemm_tile.hpp"
#include "kernels/host/product_path.hpp"

namespace llmtrain::host {

namespace {

constexpr int64_t panel_width = 64;                  ///< columns of a packed B panel
constexpr int64_t most_tile_rows = 128;              ///< a B panel is read from far caches once per tile
constexpr int64_t longest_chunk = 512;               ///< words along k in one micro-kernel call
constexpr int64_t most_chunks = 8;                   ///< of a segment: what is packed at a time along k
constexpr int64_t packed_limit = int64_t{8} << 20;   ///< bytes of packed A, and of packed B, at a time
constexpr int64_t enough_tiles = 96;                 ///< keeps tens of threads in balance
constexpr int64_t most_panels = 8;                   ///< of a tile: its C stays in the second-level cache
constexpr int64_t small_product = int64_t{1} << 17;  ///< multiplications that are done before other threads wake up
constexpr int64_t long_row_bytes = 4096;             ///< rows of A farther apart than a page are copied

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// f(i) for i in [0, count): by the team that calls it, or by one thread alone. A team of one would be made and freed
/// each time.
template <class F>
void each(bool alone, bool wait, int64_t count, const F& f) {
  if (alone) {
    for (int64_t i = 0; i < count; ++i) f(i);
    return;
  }
#pragma omp for schedule(dynamic) nowait
  for (int64_t i = 0; i < count; ++i) f(i);
  if (wait) {
#pragma omp barrier
  }
}

/// Buffers of one calling thread and its team.
struct Buffers {
  Buffer packed_a;
  Buffer packed_b;
  Buffer wide_c;
  std::vector<Buffer> own;
};

using Kernels = std::map<std::pair<bool, TileShape>, std::unique_ptr<TileKernel>>;  ///< by whether it is oneDNN's micro

/// Kernels belong to the calling thread, as plans do. Products that differ in their rows alone have the same ones but
/// for the last rows: a process that meets texts of every length keeps kernels for 128 borders, not for every length.
Kernels& kernels_of_thread() {
  static thread_local Kernels kernels;
  return kernels;
}

TileKernel* kernel_of(const TileShape& shape, bool micro) {
  std::unique_ptr<TileKernel>& kernel = kernels_of_thread()[{micro, shape}];
  if (!kernel) kernel = micro ? make_micro_kernel(shape) : make_primitive_kernel(shape);
  LLMTRAIN_CHECK(kernel != nullptr, "oneDNN refused a tile of a matrix product");
  return kernel.get();
}

/// Whether C^T = B^T A^T takes less copying: a large transposed B against few rows of A (the head, decoding) is read
/// where it lies then, A is packed, and tiles of C are transposed as they are stored.
bool better_swapped(const GemmShape& s, DType panel_type) {
  const int64_t words = s.k * static_cast<int64_t>(size_of(panel_type)) / 4;  // of a packed row or column
  const bool in_place = panel_type == s.input && (panel_type == DType::f32 || s.k % 2 == 0);
  const bool one_segment = s.k <= longest_chunk * most_chunks * 4 / static_cast<int64_t>(size_of(panel_type));
  return s.b_transposed && !s.a_transposed && !s.accumulate && in_place && one_segment &&
         s.n * words > s.m * (words + s.n);
}

GemmShape swapped(GemmShape shape) {
  std::swap(shape.m, shape.n);
  return shape;
}

/// Everything that follows from the shape: how it is cut, and the kernels of whole and border tiles. Along k: segments
/// (packed at a time) of chunks (one micro-kernel call). Along n: groups of panels; along m: bands of tile rows.
class Plan {
 public:
  Plan(const GemmShape& shape, const ProductKernels& kernels);
  void run(const void* a, const void* b, void* c, const void* bias, Buffers& buffers);

 private:
  struct Operands {
    const void* a;
    const void* b;
    void* c;
    const void* bias;
    char* packed_a;
    char* packed_b;
    float* wide_c;
  };
  /// What is packed now: panels [panel, panel + panels), chunks [chunk, chunk + chunks), tile rows [row, row + rows).
  struct Part {
    int64_t panel, panels;
    int64_t chunk, chunks;
    int64_t row, rows;
  };
  /// One thread's view while it takes tiles.
  struct Worker {
    int thread;
    float* c_tile;
    char* b_chunk;
    char* scratch;
    const TileKernel* entered = nullptr;
    bool good = true;
  };
  enum class Accumulator : uint8_t { direct, tile, shared };  ///< where fp32 sums grow: C, a thread's tile, wide_c

  void cut(bool must_pack_a);
  void make_kernels(bool micro);
  TileKernel* kernel(bool last_rows, bool last_columns, bool last_chunk, bool add) const {
    return kernels_[(last_rows ? 8u : 0u) | (last_columns ? 4u : 0u) | (last_chunk ? 2u : 0u) | (add ? 1u : 0u)];
  }
  int64_t chunk_length(int64_t chunk) const { return chunk + 1 < chunks_ ? chunk_ : padded_k_ - chunk * chunk_; }
  int64_t c_stride() const { return accumulator_ == Accumulator::tile ? panels_per_tile_ * panel_width : shape_.n; }
  char* packed_panel(const Operands& o, int64_t panel, int64_t chunk) const {
    return o.packed_b + (panel * chunks_at_a_time_ + chunk) * chunk_ * panel_width * panel_element_;
  }
  char* packed_rows(const Operands& o, int64_t row, int64_t chunk) const {
    return o.packed_a + (row * chunks_at_a_time_ + chunk) * packed_row_ * tile_rows_ * panel_element_;
  }
  template <class In, class Panel>
  PanelSource<In, Panel> source(const void* data, int64_t chunk, int64_t j, bool j_contiguous, int64_t stride) const {
    const int64_t k0 = chunk * chunk_;
    const int64_t k_stride = j_contiguous ? stride : 1;
    const int64_t j_stride = j_contiguous ? 1 : stride;
    return {static_cast<const In*>(data) + k0 * k_stride + j * j_stride, k_stride, j_stride,
            std::min(chunk_length(chunk), shape_.k - k0)};
  }
  template <class F>
  void with_types(const F& f) const;
  void pack_b_chunk(const Operands& o, char* to, int64_t panel, int64_t chunk) const;
  void pack_b_task(const Operands& o, const Part& part, int64_t task) const;
  void pack_a_task(const Operands& o, const Part& part, int64_t task) const;
  void compute(const Operands& o, Worker& w, const Part& part, int64_t task) const;
  void tile(const Operands& o, Worker& w, const Part& part, int64_t row, int64_t panel, int64_t panels) const;
  void finish(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column, int64_t columns) const;
  void finish_swapped(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                      int64_t columns) const;
  template <class F>
  void with_bias(const void* bias, const F& f) const;

  DType panel_type_;
  bool swapped_;               ///< the product is C^T = B^T A^T
  GemmShape shape_;            ///< of the product as it is done
  int64_t panel_element_ = 4;  ///< bytes
  int64_t padded_k_ = 0;       ///< even for bf16 panels
  int64_t chunk_ = 0;          ///< elements
  int64_t packed_row_ = 0;     ///< elements of a row of packed A: a chunk and a cache line, against aliasing
  int64_t chunks_ = 0;
  int64_t chunks_at_a_time_ = 0;
  int64_t tile_rows_ = 0;
  int64_t row_blocks_ = 0;
  int64_t rows_at_a_time_ = 0;  ///< tile rows
  int64_t panels_ = 0;
  int64_t panels_at_a_time_ = 0;
  int64_t panels_per_tile_ = 0;
  bool pack_a_ = false;
  bool direct_b_ = false;  ///< B is read where it lies
  bool share_b_ = true;    ///< false: one tile row; a panel is packed where it is used, and stays in cache
  Accumulator accumulator_ = Accumulator::direct;
  int64_t scratch_bytes_ = 0;
  std::array<TileKernel*, 16> kernels_{};
};

Plan::Plan(const GemmShape& shape, const ProductKernels& kernels)
    : panel_type_(kernels.operands),
      swapped_(better_swapped(shape, panel_type_)),
      shape_(swapped_ ? swapped(shape) : shape) {
  panel_element_ = static_cast<int64_t>(size_of(panel_type_));
  padded_k_ = panel_type_ == DType::bf16 ? divide_up(shape.k, 2) * 2 : shape.k;
  cut(shape_.a_transposed || panel_type_ != shape.input || padded_k_ != shape.k);
  make_kernels(kernels.micro);
}

void Plan::cut(bool must_pack_a) {
  const int64_t longest = longest_chunk * 4 / panel_element_;
  chunk_ = std::min(padded_k_, divide_up(divide_up(padded_k_, divide_up(padded_k_, longest)), 64) * 64);
  chunks_ = divide_up(padded_k_, chunk_);
  packed_row_ = divide_up(chunk_, 64) * 64 + 64 / panel_element_;
  chunks_at_a_time_ = divide_up(chunks_, divide_up(chunks_, most_chunks));
  const int64_t segment_bytes = chunks_at_a_time_ * chunk_ * panel_element_;

  panels_ = divide_up(shape_.n, panel_width);
  panels_at_a_time_ = std::min(panels_, packed_limit / (segment_bytes * panel_width));
  panels_per_tile_ = std::min(most_panels, panels_at_a_time_);
  tile_rows_ = most_tile_rows;
  const auto tiles = [&] { return divide_up(shape_.m, tile_rows_) * divide_up(panels_at_a_time_, panels_per_tile_); };
  while (panels_per_tile_ > 2 && tiles() < enough_tiles) panels_per_tile_ = divide_up(panels_per_tile_, 2);
  if (tiles() < enough_tiles) tile_rows_ /= 2;
  if (tiles() < enough_tiles) panels_per_tile_ = 1;
  row_blocks_ = divide_up(shape_.m, tile_rows_);
  direct_b_ = panel_type_ == DType::f32 && shape_.input == DType::f32 && !shape_.b_transposed &&
              shape_.n * panel_element_ < long_row_bytes;
  share_b_ = row_blocks_ > 1 && !direct_b_;

  pack_a_ =
      must_pack_a || (shape_.k * static_cast<int64_t>(size_of(shape_.input)) >= long_row_bytes && long_rows_are_slow());
  rows_at_a_time_ =
      pack_a_ ? std::clamp<int64_t>(packed_limit / (chunks_at_a_time_ * packed_row_ * panel_element_ * tile_rows_), 1,
                                    row_blocks_)
              : row_blocks_;
  if (shape_.output != DType::f32 || swapped_) {
    accumulator_ = chunks_ > chunks_at_a_time_ ? Accumulator::shared : Accumulator::tile;
  }
}

void Plan::make_kernels(bool micro) {
  const int64_t last_rows = shape_.m - (row_blocks_ - 1) * tile_rows_;
  const int64_t last_columns = shape_.n - (panels_ - 1) * panel_width;
  for (unsigned i = 0; i < kernels_.size(); ++i) {
    const bool border_row = (i & 8) != 0, border_column = (i & 4) != 0, border_chunk = (i & 2) != 0;
    TileShape s{};
    s.m = border_row ? last_rows : tile_rows_;
    s.n = border_column ? last_columns : panel_width;
    s.k = border_chunk ? chunk_length(chunks_ - 1) : chunk_;
    s.lda = pack_a_ ? packed_row_ : shape_.k;
    s.ldb = direct_b_ ? shape_.n : panel_width;
    s.ldc = c_stride();
    s.input = panel_type_;
    s.accumulate = (i & 1) != 0;
    const bool may_be_first = chunks_ == 1 || !border_chunk;
    const bool adds = s.accumulate ? chunks_ > 1 || shape_.accumulate : may_be_first && !shape_.accumulate;
    const bool exists =
        (border_row || row_blocks_ > 1) && (border_column || panels_ > 1) && (border_chunk || chunks_ > 1);
    if (!adds || !exists) continue;
    kernels_[i] = kernel_of(s, micro);
    scratch_bytes_ = std::max(scratch_bytes_, kernels_[i]->scratch_bytes());
  }
}

template <class F>
void Plan::with_types(const F& f) const {
  if (shape_.input == DType::f32) {
    f(float{}, float{});
  } else if (panel_type_ == DType::bf16) {
    f(bf16{}, bf16{});
  } else {
    f(bf16{}, float{});
  }
}

void Plan::pack_b_chunk(const Operands& o, char* to, int64_t panel, int64_t chunk) const {
  const int64_t column = panel * panel_width;
  with_types([&](auto in, auto out) {
    const auto from = source<decltype(in), decltype(out)>(o.b, chunk, column, !shape_.b_transposed,
                                                          shape_.b_transposed ? shape_.k : shape_.n);
    pack_b(reinterpret_cast<uint32_t*>(to), from, std::min(panel_width, shape_.n - column), panel_width);
  });
}

/// Task: one chunk of one panel.
void Plan::pack_b_task(const Operands& o, const Part& part, int64_t task) const {
  const int64_t panel = task / part.chunks;
  const int64_t chunk = task % part.chunks;
  pack_b_chunk(o, packed_panel(o, panel, chunk), part.panel + panel, part.chunk + chunk);
}

/// Task: one chunk of one tile row.
void Plan::pack_a_task(const Operands& o, const Part& part, int64_t task) const {
  const int64_t block = task / part.chunks;
  const int64_t chunk = task % part.chunks;
  const int64_t row = (part.row + block) * tile_rows_;
  with_types([&](auto in, auto out) {
    const auto from = source<decltype(in), decltype(out)>(o.a, part.chunk + chunk, row, shape_.a_transposed,
                                                          shape_.a_transposed ? shape_.m : shape_.k);
    pack_a(reinterpret_cast<uint32_t*>(packed_rows(o, block, chunk)),
           packed_row_ / PanelWords<decltype(in), decltype(out)>::unit, from, std::min(tile_rows_, shape_.m - row));
  });
}

/// f(bias of the operands, or null), a pointer to its type.
template <class F>
void Plan::with_bias(const void* bias, const F& f) const {
  if (!shape_.bias) return f(static_cast<const float*>(nullptr));
  dispatch(shape_.bias_type, [&](auto* tag) { f(static_cast<const std::remove_pointer_t<decltype(tag)>*>(bias)); });
}

/// Bias and conversion of a finished piece of C.
void Plan::finish(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                  int64_t columns) const {
  const int64_t stride = c_stride();
  const auto each_row = [&](auto* to, const auto& value) {
    for (int64_t i = 0; i < rows; ++i) {
      const float* sums = from + i * stride;
      auto* out = to + (row + i) * shape_.n + column;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) store(out + j, value(sums[j], column + j));
    }
  };
  dispatch(shape_.output, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(o.c);
    with_bias(o.bias, [&](const auto* bias) {
      if (bias == nullptr) return each_row(to, [](float sum, int64_t) { return sum; });
      each_row(to, [bias](float sum, int64_t j) { return sum + load(bias + j); });
    });
  });
}

/// The same where operands changed places: rows of the piece are columns of C, which is stored [n, m].
void Plan::finish_swapped(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                          int64_t columns) const {
  const int64_t stride = c_stride();
  dispatch(shape_.output, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(o.c) + column * shape_.m + row;
    with_bias(o.bias, [&](const auto* bias) {
      const auto block = [&](int64_t i, int64_t j) {  // 8 x 8
        Word8 r[8];
        for (int64_t l = 0; l < 8; ++l) r[l] = load_words(from + (i + l) * stride + j);
        transpose(r);
        const Float8 shift = bias == nullptr ? Float8{} : load8(bias + row + i);
        for (int64_t l = 0; l < 8; ++l) store8(to + (j + l) * shape_.m + i, std::bit_cast<Float8>(r[l]) + shift);
      };
      const auto element = [&](int64_t i, int64_t j) {
        store(to + j * shape_.m + i, from[i * stride + j] + (bias == nullptr ? 0.0f : load(bias + row + i)));
      };
      for (int64_t j = 0; j < columns; j += 8) {
        for (int64_t i = 0; i < rows; i += 8) {
          if (i + 8 <= rows && j + 8 <= columns) {
            block(i, j);
            continue;
          }
          for (int64_t jj = j; jj < std::min(j + 8, columns); ++jj) {
            for (int64_t ii = i; ii < std::min(i + 8, rows); ++ii) element(ii, jj);
          }
        }
      }
    });
  });
}

/// Tile row part.row + row times packed panels [panel, panel + panels).
void Plan::tile(const Operands& o, Worker& w, const Part& part, int64_t row, int64_t panel, int64_t panels) const {
  const int64_t block = part.row + row;
  const int64_t first_row = block * tile_rows_;
  const int64_t rows = std::min(tile_rows_, shape_.m - first_row);
  for (int64_t i = 0; i < part.chunks; ++i) {
    const int64_t chunk = part.chunk + i;
    const bool last = chunk + 1 == chunks_;
    const char* a = pack_a_ ? packed_rows(o, row, i)
                            : static_cast<const char*>(o.a) + (first_row * shape_.k + chunk * chunk_) * panel_element_;
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t column = (part.panel + panel + p) * panel_width;
      float* sums = w.c_tile + p * panel_width;
      if (accumulator_ != Accumulator::tile) {
        sums =
            (accumulator_ == Accumulator::direct ? static_cast<float*>(o.c) : o.wide_c) + first_row * shape_.n + column;
      }
      const TileKernel* k =
          kernel(block + 1 == row_blocks_, column + panel_width >= shape_.n, last, chunk > 0 || shape_.accumulate);
      if (k != w.entered) k->enter();
      w.entered = k;
      const char* b = share_b_ ? packed_panel(o, panel + p, i) : w.b_chunk;
      if (direct_b_) {
        b = static_cast<const char*>(o.b) + (chunk * chunk_ * shape_.n + column) * panel_element_;
      } else if (!share_b_) {
        pack_b_chunk(o, w.b_chunk, part.panel + panel + p, chunk);
      }
      w.good &= k->run(a, b, sums, w.scratch, w.thread);
      if (last && (shape_.bias || accumulator_ != Accumulator::direct)) {
        const int64_t columns = std::min(panel_width, shape_.n - column);
        swapped_ ? finish_swapped(o, sums, first_row, rows, column, columns)
                 : finish(o, sums, first_row, rows, column, columns);
      }
    }
  }
}

void Plan::compute(const Operands& o, Worker& w, const Part& part, int64_t task) const {
  const int64_t groups = divide_up(part.panels, panels_per_tile_);
  const int64_t panel = task % groups * panels_per_tile_;
  tile(o, w, part, task / groups, panel, std::min(panels_per_tile_, part.panels - panel));
}

void Plan::run(const void* a, const void* b, void* c, const void* bias, Buffers& buffers) {
  const bool alone = omp_in_parallel() || shape_.m * shape_.n * shape_.k <= small_product;
  const int threads = alone ? 1 : omp_get_max_threads();
  for (TileKernel* k : kernels_) {
    if (k != nullptr) k->prepare(threads);
  }
  if (static_cast<int>(buffers.own.size()) < threads) buffers.own.resize(static_cast<size_t>(threads));
  const int64_t c_tile_bytes = accumulator_ == Accumulator::tile ? tile_rows_ * panels_per_tile_ * panel_width * 4 : 0;
  const int64_t b_chunk_bytes = share_b_ || direct_b_ ? 0 : chunk_ * panel_width * panel_element_;
  for (int t = 0; t < threads; ++t) {
    buffers.own[static_cast<size_t>(t)].reserve(c_tile_bytes + b_chunk_bytes + scratch_bytes_ + 64);
  }
  const int64_t segment = chunks_at_a_time_ * panel_element_;  // bytes per element of a chunk
  Operands o{swapped_ ? b : a, swapped_ ? a : b, c, bias, nullptr, nullptr, nullptr};
  if (pack_a_) o.packed_a = buffers.packed_a.reserve(rows_at_a_time_ * tile_rows_ * packed_row_ * segment);
  if (share_b_) o.packed_b = buffers.packed_b.reserve(panels_at_a_time_ * panel_width * chunk_ * segment);
  if (accumulator_ == Accumulator::shared) {
    o.wide_c = reinterpret_cast<float*>(buffers.wide_c.reserve(shape_.m * shape_.n * 4));
  }
  const bool a_stays = row_blocks_ <= rows_at_a_time_ && chunks_ <= chunks_at_a_time_;  // packed once for all panels
  std::atomic<bool> good{true};
  const auto work = [&](int thread) {
    char* own = buffers.own[static_cast<size_t>(thread)].reserve(0);
    Worker w{thread, reinterpret_cast<float*>(own), own + c_tile_bytes, own + c_tile_bytes + b_chunk_bytes};
    Part part{};
    for (part.panel = 0; part.panel < panels_; part.panel += panels_at_a_time_) {
      part.panels = std::min(panels_at_a_time_, panels_ - part.panel);
      for (part.chunk = 0; part.chunk < chunks_; part.chunk += chunks_at_a_time_) {
        part.chunks = std::min(chunks_at_a_time_, chunks_ - part.chunk);
        each(threads == 1, false, share_b_ ? part.panels * part.chunks : 0,
             [&](int64_t i) { pack_b_task(o, part, i); });
        for (part.row = 0; part.row < row_blocks_; part.row += rows_at_a_time_) {
          part.rows = std::min(rows_at_a_time_, row_blocks_ - part.row);
          const int64_t to_pack = pack_a_ && (part.panel == 0 || !a_stays) ? part.rows * part.chunks : 0;
          each(threads == 1, true, to_pack, [&](int64_t i) { pack_a_task(o, part, i); });
          const int64_t tiles = part.rows * divide_up(part.panels, panels_per_tile_);
          each(threads == 1, true, tiles, [&](int64_t i) { compute(o, w, part, i); });
        }
      }
    }
    leave_micro_kernels();
    if (!w.good) good = false;
  };
  if (threads == 1) {
    work(0);
  } else {
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num());
  }
  LLMTRAIN_CHECK(good, "oneDNN failed in a matrix product");
}

struct PlanKey {
  GemmShape shape;
  ProductPath path;
  bool operator==(const PlanKey&) const = default;
};

struct PlanHash {
  size_t operator()(const PlanKey& key) const {
    const GemmShape& s = key.shape;
    uint64_t h = 0;
    for (const int64_t v : {s.m, s.n, s.k}) h = (h ^ static_cast<uint64_t>(v)) * 0x9E3779B97F4A7C15u;
    for (const bool v : {s.a_transposed, s.b_transposed, s.accumulate, s.bias}) h = h * 2 + (v ? 1 : 0);
    h = h * 31 + static_cast<uint64_t>(s.input) * 7 + static_cast<uint64_t>(s.output);
    return static_cast<size_t>((h ^ (h >> 32)) * 0x9E3779B97F4A7C15u);
  }
};

}  // namespace

void gemm(const GemmShape& shape, const void* a, const void* b, void* c, const void* bias) {
  // Plans belong to the calling thread: no lock, no sharing of buffers. oneDNN itself keeps generated code per process.
  static thread_local std::unordered_map<PlanKey, std::unique_ptr<Plan>, PlanHash> plans;
  static thread_local Buffers buffers;
  LLMTRAIN_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0, "a matrix product has at least one element");
  LLMTRAIN_CHECK(shape.output == DType::f32 || !shape.accumulate, "sums of products are fp32");
  std::unique_ptr<Plan>& plan = plans[{shape, forced_product_path()}];
  if (!plan) plan = std::make_unique<Plan>(shape, product_kernels(shape.input, shape.m));
  plan->run(a, b, c, bias, buffers);
}

int64_t kernel_count() { return static_cast<int64_t>(kernels_of_thread().size()); }

}  // namespace llmtrain::host
