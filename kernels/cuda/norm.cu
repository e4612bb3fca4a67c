#include "core/profile.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/dropout_row.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/norm.hpp"

// Rows are read from memory once. In the forward pass, a warp keeps its row in registers or, if it is longer, in shared
// memory. In the backward pass, a block processes the rows of a partial column sum, one per warp at a time: first its
// warps compute the reductions over each row, then its threads, each with columns of its own, all gradients; the second
// read comes from a cache. There are no atomics.

namespace llmtrain {

namespace {

using namespace cuda;

/// A row that a warp traverses several times: packs of every lane in registers, or in shared memory, where lanes read
/// only what they have written, or in global memory.
template <bool held>
struct WarpRow {
  static constexpr int max_packs = 8;
  int64_t n;
  const float* memory;
  float* shared;  ///< null if the row is too long
  Pack packs[held ? max_packs : 1];

  /// Stores f(i), the elements from i on; f must also write them to memory.
  template <class F>
  __device__ void load(const F& f) {
    if constexpr (held) {
      LLMTRAIN_UNROLL
      for (int k = 0; k < max_packs; ++k) packs[k] = at(k) < n ? f(at(k)) : Pack{};
    } else {
      for_packs(n, [&](int64_t i) {
        const Pack p = f(i);
        if (shared != nullptr) store_pack(shared, i, n, p);
      });
    }
  }
  /// Calls f(i, elements from i on).
  template <class F>
  __device__ void each(const F& f) const {
    if constexpr (held) {
      LLMTRAIN_UNROLL
      for (int k = 0; k < max_packs; ++k) {
        if (at(k) < n) f(at(k), packs[k]);
      }
    } else {
      const float* const from = shared != nullptr ? shared : memory;
      for_packs(n, [&](int64_t i) { f(i, load_pack(from, i, n)); });
    }
  }

 private:
  __device__ static int64_t at(int k) { return (k * warp_lanes + lane()) * Pack::size; }
};
inline constexpr int64_t max_held_row = WarpRow<true>::max_packs * warp_lanes * Pack::size;
/// Blocks have few warps, so that every GPU has enough shared memory for long rows.
inline constexpr int warps_of_long_rows = 4;
constexpr int64_t shared_row_floats(int64_t n) { return blocks_for(n, Pack::size) * Pack::size; }
/// Bytes per block; 0 if that is too much.
constexpr int shared_bytes_of_rows(int64_t n) {
  const int64_t bytes = warps_of_long_rows * shared_row_floats(n) * static_cast<int64_t>(sizeof(float));
  return static_cast<int>(bytes <= shared_bytes_of_block(0) ? bytes : 0);
}

/// The residual stream before the norm.
struct PlainInput {
  __device__ Pack at(const float* x, int64_t row, int64_t i, int64_t channels) const {
    return load_pack(x + row * channels, i, channels);
  }
};
template <class T>
struct InputWithBranch {
  const float* in;
  const T* delta;
  RowDropout dropout;

  __device__ Pack at(float* x, int64_t row, int64_t i, int64_t channels) const {
    Pack sum = load_pack(in + row * channels, i, channels);
    const Pack d = load_pack(delta + row * channels, i, channels);
    const Pack factors = dropout.scales<Pack::size>(row, i);
    for (int k = 0; k < Pack::size; ++k) sum.v[k] = fmaf(factors.v[k], d.v[k], sum.v[k]);
    store_pack(x + row * channels, i, channels, sum);
    return sum;
  }
};

template <class Y, class W, class X, bool held>
struct ForwardRow {
  NormKind kind;
  Y* y;
  float *mean, *rstd, *x;
  X source;
  const W *weight, *bias;
  float epsilon, offset;
  int64_t channels;

  __device__ float* shared_row() const {
    if (held || shared_bytes_of_rows(channels) == 0) return nullptr;
    return dynamic_shared<float>() + threadIdx.x / warp_lanes * shared_row_floats(channels);
  }
  __device__ void operator()(int64_t row) const {
    WarpRow<held> in{channels, x + row * channels, shared_row(), {}};
    in.load([&](int64_t i) { return source.at(x, row, i, channels); });
    const double count = static_cast<double>(channels);
    float center = 0;
    if (kind == NormKind::layernorm) {
      double sum = 0;
      in.each([&](int64_t, const Pack& p) { sum += (p.v[0] + p.v[1]) + (p.v[2] + p.v[3]); });
      center = static_cast<float>(warp_sum(sum) / count);
    }
    double squares = 0;
    in.each([&](int64_t i, const Pack& p) {
      float sum = 0;
      for (int k = 0; k < Pack::size; ++k) {
        const float d = i + k < channels ? p.v[k] - center : 0.0f;
        sum = fmaf(d, d, sum);
      }
      squares += sum;
    });
    const float scale = static_cast<float>(1.0 / sqrt(warp_sum(squares) / count + double{epsilon}));
    if (lane() == 0) {
      if (mean != nullptr) mean[row] = center;
      rstd[row] = scale;
    }
    in.each([&](int64_t i, const Pack& p) {
      const Pack w = load_pack(weight, i, channels);
      const Pack b = bias == nullptr ? Pack{} : load_pack(bias, i, channels);
      Pack out;
      for (int k = 0; k < Pack::size; ++k) out.v[k] = fmaf((p.v[k] - center) * scale, offset + w.v[k], b.v[k]);
      store_pack(y + row * channels, i, channels, out);
    });
  }
};

template <class X>
void forward(const NormForward& a, const X& source, Stream& stream) {
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.y.numel() == a.x.numel() && a.weight.numel() == channels && a.rstd.numel() >= rows,
                 "shapes of a norm");
  LLMTRAIN_CHECK(a.bias.empty() || (a.bias.numel() == channels && a.bias.dtype == a.weight.dtype), "bias of a norm");
  float* means = a.mean.empty() || a.kind == NormKind::rmsnorm ? nullptr : a.mean.as<float>();
  dispatch(a.y, a.weight, [&]<class Y, class W>(Y* y, W* weight) {
    const auto start = [&]<bool held>(std::bool_constant<held>) {
      constexpr int warps = held ? 8 : warps_of_long_rows;
      for_each_warp<warps>(rows, stream,
                           ForwardRow<Y, W, decltype(source(weight)), held>{
                               a.kind, y, means, a.rstd.as<float>(), a.x.as<float>(), source(weight), weight,
                               static_cast<const W*>(a.bias.data), a.epsilon, a.weight_offset, channels},
                           held ? 0 : shared_bytes_of_rows(channels));
    };
    channels <= max_held_row ? start(std::true_type()) : start(std::false_type());
  });
}

/// The branch's gradient from dx.
struct PlainGradient {
  __device__ void store(int64_t, int64_t, int64_t, const Pack&) const {}
};
template <class T>
struct GradientWithBranch {
  T* delta;
  RowDropout dropout;
  __device__ void store(int64_t row, int64_t i, int64_t channels, Pack d) const {
    const Pack factors = dropout.scales<Pack::size>(row, i);
    for (int k = 0; k < Pack::size; ++k) d.v[k] *= factors.v[k];
    store_pack(delta + row * channels, i, channels, d);
  }
};

/// With g = dy (offset + weight) and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm has no
/// mean(g). dweight += dy h, dbias += dy: sums of the block's rows, in order.
template <class D, class W, class Branch>
struct BackwardRows {
  static constexpr int threads = 256;
  float *dx, *partial;
  Branch branch;
  const D* dy;
  const float* x;
  const W* weight;
  const float *mean, *rstd;
  float offset;
  int64_t rows, channels;
  bool accumulate;

  /// Reductions of a row that all its columns need.
  struct RowStatistics {
    float center, scale, g_mean, gh_mean;
  };

  __device__ RowStatistics statistics_of(int64_t row) const {
    RowStatistics r{mean == nullptr ? 0.0f : mean[row], rstd[row], 0, 0};
    double g_sum = 0, gh_sum = 0;
    for_packs(channels, [&](int64_t i) {
      const Pack w = load_pack(weight, i, channels), d = load_pack(dy + row * channels, i, channels),
                 in = load_pack(x + row * channels, i, channels);
      for (int k = 0; k < Pack::size; ++k) {  // past the end of the row d is 0
        const float g = d.v[k] * (offset + w.v[k]);
        g_sum += g;
        gh_sum += double{g} * ((in.v[k] - r.center) * r.scale);
      }
    });
    const double count = static_cast<double>(channels);
    if (mean != nullptr) r.g_mean = static_cast<float>(warp_sum(g_sum) / count);
    r.gh_mean = static_cast<float>(warp_sum(gh_sum) / count);
    return r;
  }

  __device__ void operator()() const {
    constexpr int warps = threads / warp_lanes;
    LLMTRAIN_SHARED(RowStatistics[rows_per_block], statistics);
    const int64_t first = blockIdx.x * rows_per_block;
    const int count = static_cast<int>(rows - first < rows_per_block ? rows - first : rows_per_block);
    for (int begin = 0; begin < count; begin += warps) {
      const int own = begin + static_cast<int>(threadIdx.x) / warp_lanes;
      if (own < count) {
        const RowStatistics r = statistics_of(first + own);
        if (lane() == 0) statistics[own] = r;
      }
      __syncthreads();
      add_rows(statistics, first, begin, std::min(begin + warps, count));
    }
  }

  /// Gradients of rows begin to end of the block, added to the block's sums. Rows are traversed backwards, since the
  /// last ones read are still in a cache.
  __device__ void add_rows(const RowStatistics* statistics, int64_t first, int begin, int end) const {
    float* sums = partial + int64_t{blockIdx.x} * 2 * channels;
    constexpr int64_t stride = threads * Pack::size;
    for (int64_t from = (channels - 1) / stride * stride; from >= 0; from -= stride) {
      const int64_t i = from + threadIdx.x * Pack::size;
      if (i >= channels) continue;
      Pack dweight{}, dbias{};
      if (begin > 0) {
        dweight = load_pack(sums, i, channels);
        dbias = load_pack(sums + channels, i, channels);
      }
      columns(statistics, first, begin, end, i, dweight, dbias);
      store_pack(sums, i, channels, dweight);
      store_pack(sums + channels, i, channels, dbias);
    }
  }

  /// dx may alias x: rows are read before they are written.
  __device__ void columns(const RowStatistics* statistics, int64_t first, int begin, int end, int64_t i, Pack& dweight,
                          Pack& dbias) const {
    constexpr int ahead = 4;  // loads are issued before stores, which may alias them
    const Pack w = load_pack(weight, i, channels);
    for (; begin < end; begin += ahead) {
      Pack gradients[ahead], inputs[ahead], sums[ahead];
      LLMTRAIN_UNROLL
      for (int j = 0; j < ahead; ++j) {
        const int64_t row = (first + std::min(begin + j, end - 1)) * channels;
        gradients[j] = load_pack(dy + row, i, channels);
        inputs[j] = load_pack(x + row, i, channels);
        sums[j] = accumulate ? load_pack(dx + row, i, channels) : Pack{};
      }
      LLMTRAIN_UNROLL
      for (int j = 0; j < ahead; ++j) {
        if (begin + j >= end) continue;
        const RowStatistics r = statistics[begin + j];
        for (int k = 0; k < Pack::size; ++k) {
          const float d = gradients[j].v[k], h = (inputs[j].v[k] - r.center) * r.scale, g = d * (offset + w.v[k]);
          dweight.v[k] = fmaf(d, h, dweight.v[k]);
          dbias.v[k] += d;
          sums[j].v[k] = fmaf(r.scale, fmaf(-h, r.gh_mean, g - r.g_mean), sums[j].v[k]);
        }
        store_pack(dx + (first + begin + j) * channels, i, channels, sums[j]);
        branch.store(first + begin + j, i, channels, sums[j]);
      }
    }
  }
};

template <class Branch>
void backward(const NormBackward& a, const Branch& branch, Stream& stream) {
  const int64_t rows = a.x.dim(0), channels = a.x.dim(1);
  LLMTRAIN_CHECK(a.dx.numel() == a.x.numel() && a.dy.numel() == a.x.numel() && a.rstd.numel() >= rows &&
                     (a.dweight.empty() || a.dweight.numel() == channels),
                 "shapes of a norm's gradient");
  const float* means = a.kind == NormKind::layernorm ? a.mean.as<float>() : nullptr;
  void* memory = scratch(column_sum_bytes(rows, 2 * channels));
  float* partial = partial_column_sums(memory, rows, 2 * channels);
  dispatch(a.dy, a.weight, [&]<class D, class W>(D* dy, W* weight) {
    launch({blocks_for(rows, rows_per_block)}, stream,
           BackwardRows<D, W, decltype(branch(weight))>{a.dx.as<float>(), partial, branch(weight), dy, a.x.as<float>(),
                                                        weight, means, a.rstd.as<float>(), a.weight_offset, rows,
                                                        channels, a.accumulate_dx});
  });
  if (a.dweight.empty() && a.dbias.empty()) return;
  fold_column_sums(
      memory, rows, channels,
      {a.dweight.empty() ? nullptr : a.dweight.as<float>(), a.dbias.empty() ? nullptr : a.dbias.as<float>()},
      a.accumulate_params, stream);
}

Work backward_traffic(const NormBackward& a) {
  return a.accumulate_dx ? traffic({&a.x, &a.dy, &a.dx, &a.dx}) : traffic({&a.x, &a.dy, &a.dx});
}

void check_branch(const Tensor& x, const Tensor& weight, const ResidualBranch& branch) {
  LLMTRAIN_CHECK(branch.delta.shape == x.shape && branch.batch.tokens == x.dim(0) && branch.delta.dtype == weight.dtype,
                 "a branch is [N, C] of the batch in the weight's dtype");
}

}  // namespace

void norm_forward(const NormForward& a, Stream& stream) {
  const ProfileSpan span("norm_forward", [&] { return traffic({&a.x, &a.y}); });
  forward(
      a, [](const void*) { return PlainInput{}; }, stream);
}

void residual_norm_forward(const NormForward& a, const Tensor& in, const ResidualBranch& branch, Stream& stream) {
  const ProfileSpan span("residual_norm_forward", [&] { return traffic({&in, &branch.delta, &a.x, &a.y}); });
  check_branch(a.x, a.weight, branch);
  LLMTRAIN_CHECK(in.shape == a.x.shape && in.dtype == DType::f32, "residual stream: fp32 [N, C] of the batch");
  const RowDropout dropout(branch.dropout, branch.batch, a.x.dim(1));
  forward(
      a,
      [&]<class W>(const W*) {
        return InputWithBranch<W>{in.as<float>(), branch.delta.as<W>(), dropout};
      },
      stream);
}

void norm_backward(const NormBackward& a, Stream& stream) {
  const ProfileSpan span("norm_backward", [&] { return backward_traffic(a); });
  backward(
      a, [](const void*) { return PlainGradient{}; }, stream);
}

void residual_norm_backward(const NormBackward& a, const ResidualBranch& branch, Stream& stream) {
  const ProfileSpan span("residual_norm_backward", [&] {
    Work work = backward_traffic(a);
    work.bytes += traffic({&branch.delta}).bytes;
    return work;
  });
  check_branch(a.x, a.weight, branch);
  const RowDropout dropout(branch.dropout, branch.batch, a.x.dim(1));
  backward(
      a,
      [&]<class W>(const W*) {
        return GradientWithBranch<W>{branch.delta.as<W>(), dropout};
      },
      stream);
}

}  // namespace llmtrain
