#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <memory>
#include <unordered_map>

#include "core/error.hpp"
#include "device/processor.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/dequantize.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/gemm_plan.hpp"
#include "kernels/host/product/tile_store.hpp"
#include "kernels/host/team_loops.hpp"

namespace llmtrain::host {

namespace {

void store_tile(const FinishedTile& tile) {
#if defined(__x86_64__)
  static const bool wide = processor_has(Instructions::avx512);
  if (wide) return store_tile_avx512(tile);
#endif
  TileStore<Float8>::run(tile);
}

}  // namespace

template <class F>
void GemmPlan::with_types(const F& f) const {
  if (shape_.input == DType::f32) {
    f(float{}, float{});
  } else if (shape_.input == DType::f16) {
    f(f16{}, float{});
  } else if (panel_type_ == DType::bf16) {
    f(bf16{}, bf16{});
  } else {
    f(bf16{}, float{});
  }
}

void GemmPlan::pack_b_block(const Operands& o, char* to, int64_t panel, int64_t k_block) const {
  const int64_t column = panel * panel_width_;
  with_types([&](auto in, auto out) {
    if (shape_.quantized && !swapped_) return pack_quantized_b<decltype(in), decltype(out)>(o, to, panel, k_block);
    const auto from = source<decltype(in), decltype(out)>(o.b, k_block, column, !shape_.b_transposed,
                                                          shape_.b_transposed ? shape_.k : shape_.n);
    pack_b(reinterpret_cast<uint32_t*>(to), from, std::min(panel_width_, shape_.n - column), panel_width_);
  });
}

/// Dequantises a few rows at a time, which stay in the first-level cache, and packs them.
template <class In, class Panel>
void GemmPlan::pack_quantized_b(const Operands& o, char* to, int64_t panel, int64_t k_block) const {
  using Source = PanelSource<In, Panel>;
  constexpr int64_t unit = Source::Words::unit, rows_at_once = 8, words_at_once = 16;
  constexpr int64_t stride = max_k_block * unit + 64 / static_cast<int64_t>(sizeof(In));  // against aliasing
  auto* out = reinterpret_cast<uint32_t*>(to);
  const int64_t column = panel * max_panel_width, columns = std::min(max_panel_width, shape_.n - column);
  const int64_t k0 = k_block * k_block_, k = std::min(k_block_length(k_block), shape_.k - k0);
  alignas(64) In values[std::max(rows_at_once * stride, words_at_once * unit * max_panel_width)];
  if (shape_.b_transposed) {
    for (int64_t j = 0; j < max_panel_width; j += rows_at_once) {
      const int64_t rows = std::clamp<int64_t>(columns - j, 0, rows_at_once);
      for (int64_t r = 0; r < rows; ++r) {
        dequantize_row(*o.quantized, column + j + r, k0, k, shape_.input, values + r * stride);
      }
      pack_blocks(out + j, max_panel_width, 1, Source{values, 1, stride, k}, rows, rows_at_once);
    }
    return;
  }
  for (int64_t first = 0; first < k; first += words_at_once * unit) {
    const int64_t rows = std::min(words_at_once * unit, k - first);
    for (int64_t r = 0; r < rows; ++r) {
      dequantize_row(*o.quantized, k0 + first + r, column, columns, shape_.input, values + r * max_panel_width);
    }
    pack_blocks(out + first / unit * max_panel_width, max_panel_width, 1, Source{values, max_panel_width, 1, rows},
                columns, max_panel_width);
  }
}

/// Task: one k-block of one panel.
void GemmPlan::pack_b_task(const Operands& o, const Part& part, int64_t task) const {
  const int64_t panel = task / part.k_blocks;
  const int64_t k_block = task % part.k_blocks;
  pack_b_block(o, packed_panel(o, panel, k_block), part.panel + panel, part.k_block + k_block);
}

/// Task: one k-block of one tile row.
void GemmPlan::pack_a_task(const Operands& o, const Part& part, int64_t task) const {
  const int64_t block = task / part.k_blocks;
  const int64_t k_block = task % part.k_blocks;
  pack_a_block(o, packed_rows(o, block, k_block), part.row + block, part.k_block + k_block);
}

/// Packs a k-block of tile row `block`.
void GemmPlan::pack_a_block(const Operands& o, char* to, int64_t block, int64_t k_block) const {
  const int64_t row = block * tile_rows_, rows = std::min(tile_rows_, shape_.m - row);
  if (quantized_a()) {
    const int64_t k0 = k_block * k_block_, padded = k_block_length(k_block), k = std::min(padded, shape_.k - k0);
    for (int64_t r = 0; r < rows; ++r, to += packed_row_ * panel_element_) {
      dequantize_row(*o.quantized, row + r, k0, k, shape_.input, to, panel_type_ == DType::f32);
      std::fill(to + k * panel_element_, to + padded * panel_element_, char{0});
    }
    return;
  }
  with_types([&](auto in, auto out) {
    const auto from = source<decltype(in), decltype(out)>(o.a, k_block, row, shape_.a_transposed, a_row_length());
    pack_a(reinterpret_cast<uint32_t*>(to), packed_row_ / PanelWords<decltype(in), decltype(out)>::unit, from, rows);
  });
}

/// Task: a tile row of P, or after these a panel of Q.
void GemmPlan::pack_added_task(const Operands& o, int64_t task) const {
  with_types([&](auto in, auto out) {
    using In = decltype(in);
    using Source = PanelSource<In, decltype(out)>;
    const int64_t rank = shape_.rank, row = task * tile_rows_;
    if (task < row_blocks_) {
      pack_a(reinterpret_cast<uint32_t*>(packed_p_rows(o, task)), packed_rank_ / Source::Words::unit,
             Source{static_cast<const In*>(o.p) + row * rank, 1, rank, rank}, std::min(tile_rows_, shape_.m - row));
      return;
    }
    const int64_t panel = task - row_blocks_, column = panel * panel_width_;
    const int64_t k_stride = shape_.b_transposed ? 1 : shape_.n, j_stride = shape_.b_transposed ? rank : 1;
    pack_b(reinterpret_cast<uint32_t*>(packed_q_panel(o, panel)),
           Source{static_cast<const In*>(o.q) + column * j_stride, k_stride, j_stride, rank},
           std::min(panel_width_, shape_.n - column), panel_width_);
  });
}

/// Calls f(bias of the operands, or null) with a pointer to its type.
template <class F>
void GemmPlan::with_bias(const void* bias, const F& f) const {
  if (!shape_.bias) return f(static_cast<const float*>(nullptr));
  dispatch(shape_.bias_type, [&](auto* tag) { f(static_cast<const std::remove_pointer_t<decltype(tag)>*>(bias)); });
}

/// Adds the bias to a finished part of C and converts it.
void GemmPlan::finish(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                      int64_t columns) const {
  const char* bias = nullptr;
  if (shape_.bias) bias = static_cast<const char*>(o.bias) + column * static_cast<int64_t>(size_of(shape_.bias_type));
  char* out = static_cast<char*>(o.c) + (row * shape_.n + column) * static_cast<int64_t>(size_of(shape_.output));
  store_tile({from, c_stride(), rows, columns, out, shape_.n, shape_.output, bias, shape_.bias_type});
}

/// The same for swapped operands: rows of the part are columns of C, which is stored [n, m].
void GemmPlan::finish_swapped(const Operands& o, const float* from, int64_t row, int64_t rows, int64_t column,
                              int64_t columns) const {
  const int64_t stride = c_stride();
  dispatch(shape_.output, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(o.c) + column * shape_.m + row;
    with_bias(o.bias, [&](const auto* bias) {
      const auto block = [&](int64_t i, int64_t j) {  // 8 x 8
        Words8 r[8];
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

void GemmPlan::multiply(Worker& w, const TileKernel* kernel, const void* a, const void* b, float* sums) const {
  if (kernel != w.configured) kernel->configure_thread();
  w.configured = kernel;
  w.good &= kernel->run(a, b, sums, w.scratch);
}

/// Adds tile row `row` of P times a panel of Q.
void GemmPlan::add_product(const Operands& o, Worker& w, int64_t row, int64_t panel, float* sums) const {
  const unsigned index = (row + 1 == row_blocks_ ? 2u : 0u) | (panel + 1 == panels_ ? 1u : 0u);
  multiply(w, added_kernels_[index], packed_p_rows(o, row), packed_q_panel(o, panel), sums);
}

void GemmPlan::finish_panel(const Operands& o, const float* sums, int64_t row, int64_t panel) const {
  const int64_t first_row = row * tile_rows_, column = panel * panel_width_;
  const int64_t rows = std::min(tile_rows_, shape_.m - first_row);
  const int64_t columns = std::min(panel_width_, shape_.n - column);
  swapped_ ? finish_swapped(o, sums, first_row, rows, column, columns)
           : finish(o, sums, first_row, rows, column, columns);
}

/// Multiplies tile row part.row + row by packed panels [panel, panel + panels).
void GemmPlan::tile(const Operands& o, Worker& w, const Part& part, int64_t row, int64_t panel, int64_t panels) const {
  const int64_t block = part.row + row;
  const int64_t first_row = block * tile_rows_;
  for (int64_t i = 0; i < part.k_blocks; ++i) {
    const int64_t k_block = part.k_block + i;
    const bool last = k_block + 1 == k_blocks_;
    const char* a = static_cast<const char*>(o.a) + (first_row * shape_.k + k_block * k_block_) * panel_element_;
    if (pack_a_) a = share_a_ ? packed_rows(o, row, i) : w.a_block;
    if (pack_a_ && !share_a_) pack_a_block(o, w.a_block, block, k_block);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t column = (part.panel + panel + p) * panel_width_;
      const TileKernel* k =
          kernel(block + 1 == row_blocks_, column + panel_width_ >= shape_.n, last, k_block > 0 || shape_.accumulate);
      const char* b = share_b_ ? packed_panel(o, panel + p, i) : w.b_block;
      if (direct_b_) {
        b = static_cast<const char*>(o.b) + (k_block * k_block_ * shape_.n + column) * panel_element_;
      } else if (!share_b_) {
        pack_b_block(o, w.b_block, part.panel + panel + p, k_block);
      }
      multiply(w, k, a, b, sums_of(o, w, first_row, column, p));
    }
  }
  if (part.k_block + part.k_blocks < k_blocks_) return;
  const bool finishes = shape_.bias || accumulator_ != Accumulator::direct;
  for (int64_t p = 0; p < panels && (finishes || shape_.rank > 0); ++p) {
    const int64_t whole_panel = part.panel + panel + p;
    float* sums = sums_of(o, w, first_row, whole_panel * panel_width_, p);
    if (shape_.rank > 0) add_product(o, w, block, whole_panel, sums);
    if (finishes) finish_panel(o, sums, block, whole_panel);
  }
}

void GemmPlan::compute(const Operands& o, Worker& w, const Part& part, int64_t task) const {
  const int64_t groups = divide_up(part.panels, panels_per_tile_);
  const int64_t panel = task % groups * panels_per_tile_;
  tile(o, w, part, task / groups, panel, std::min(panels_per_tile_, part.panels - panel));
}

void GemmPlan::run(const GemmOperands& operands) {
  if (!made_) make_kernels();
  const int threads = thread_count();
  const BufferSizes r = buffer_sizes();
  char* memory = workspace(r.bytes(threads));
  char* owns = memory + r.shared();
  char* added = memory + r.packed_a + r.packed_b + r.wide_c;
  const auto& [a, b, c, bias, p, q, quantized] = operands;
  const Operands o{swapped_ ? b : a,
                   swapped_ ? a : b,
                   c,
                   bias,
                   memory,
                   memory + r.packed_a,
                   reinterpret_cast<float*>(memory + r.packed_a + r.packed_b),
                   swapped_ ? q : p,
                   swapped_ ? p : q,
                   added,
                   added + r.packed_p,
                   quantized};
  const bool a_stays =
      row_blocks_ <= rows_at_a_time_ && k_blocks_ <= k_blocks_at_a_time_;  // packed once for all panels
  std::atomic<bool> good{true};
  static thread_local TeamLoops loops;
  loops.prepare(threads);
  const auto work = [&, &team = loops](int thread) {
    char* own = owns + thread * r.own;
    char* a_block = own + r.c_tile;
    char* b_block = a_block + r.a_block;
    Worker w{reinterpret_cast<float*>(own), a_block, b_block, b_block + r.b_block};
    TeamLoops::Member member(team, thread);
    const auto wait = [&] {
      if (threads == 1) return;
#pragma omp barrier
    };
    Part part{};
    member.share(shape_.rank > 0 ? row_blocks_ + panels_ : 0, [&](int64_t i) { pack_added_task(o, i); });
    for (part.panel = 0; part.panel < panels_; part.panel += panels_at_a_time_) {
      part.panels = std::min(panels_at_a_time_, panels_ - part.panel);
      for (part.k_block = 0; part.k_block < k_blocks_; part.k_block += k_blocks_at_a_time_) {
        part.k_blocks = std::min(k_blocks_at_a_time_, k_blocks_ - part.k_block);
        if (part.panel + part.k_block > 0) wait();  // the previous packed operands are no longer needed
        member.share(share_b_ ? part.panels * part.k_blocks : 0, [&](int64_t i) { pack_b_task(o, part, i); });
        for (part.row = 0; part.row < row_blocks_; part.row += rows_at_a_time_) {
          part.rows = std::min(rows_at_a_time_, row_blocks_ - part.row);
          const bool packs_a = pack_a_ && share_a_ && (part.panel == 0 || !a_stays);
          if (part.row > 0 && packs_a) wait();
          member.share(packs_a ? part.rows * part.k_blocks : 0, [&](int64_t i) { pack_a_task(o, part, i); });
          wait();
          const int64_t tiles = part.rows * divide_up(part.panels, panels_per_tile_);
          member.share(tiles, [&](int64_t i) { compute(o, w, part, i); });
        }
      }
    }
    leave_micro_kernels();
    if (!w.good) good = false;
    if (thread == 0) team.done(member);
  };
  if (threads == 1) {  // a team of one would be created and freed each time
    work(0);
  } else {
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num());
  }
  LLMTRAIN_CHECK(good, "oneDNN failed in a matrix product");
}

namespace {

struct PlanKey {
  GemmShape shape;
  ProductPath path;
  bool operator==(const PlanKey&) const = default;
};

struct PlanHash {
  size_t operator()(const PlanKey& key) const {
    const GemmShape& s = key.shape;
    uint64_t h = 0;
    for (const int64_t v : {s.m, s.n, s.k, s.rank, s.a_columns})
      h = (h ^ static_cast<uint64_t>(v)) * 0x9E3779B97F4A7C15u;
    for (const bool v : {s.a_transposed, s.b_transposed, s.accumulate, s.bias, s.any_rows, s.quantized})
      h = h * 2 + (v ? 1 : 0);
    h = h * 31 + static_cast<uint64_t>(s.input) * 7 + static_cast<uint64_t>(s.output);
    return static_cast<size_t>((h ^ (h >> 32)) * 0x9E3779B97F4A7C15u);
  }
};

int64_t path_rows(const GemmShape& shape) {
  return shape.any_rows ? std::numeric_limits<int64_t>::max() : std::max(shape.m, shape.a_columns);
}

}  // namespace

void gemm(const GemmShape& shape, const GemmOperands& operands) {
  // Plans belong to the calling thread: no lock, no sharing of buffers. oneDNN itself caches generated code per
  // process.
  static thread_local std::unordered_map<PlanKey, std::unique_ptr<GemmPlan>, PlanHash> plans;
  LLMTRAIN_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0, "a matrix product has at least one element");
  LLMTRAIN_CHECK(shape.output == DType::f32 || !shape.accumulate, "sums of products are fp32");
  LLMTRAIN_CHECK(shape.rank == 0 || !shape.a_transposed, "a product of weight gradients has no other one added");
  LLMTRAIN_CHECK(shape.a_columns == 0 || (shape.a_transposed && shape.a_columns >= shape.m),
                 "only a transposed operand is a block of columns");
  std::unique_ptr<GemmPlan>& plan = plans[{shape, forced_product_path()}];
  if (!plan) plan = std::make_unique<GemmPlan>(shape, product_kernels(shape.input, path_rows(shape)));
  plan->run(operands);
}

int64_t gemm_workspace_bytes(const GemmShape& shape) {
  return GemmPlan(shape, product_kernels(shape.input, path_rows(shape))).workspace_bytes();
}

}  // namespace llmtrain::host
