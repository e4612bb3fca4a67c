#pragma once
// Attention written down naively in double, and what runs the kernels on the same case.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "harness/errors.hpp"
#include "harness/harness.hpp"
#include "kernels/attention.hpp"

namespace llmtrain::test {

struct AttentionCase {
  AttentionShape shape;
  std::vector<int> lengths;  ///< of the segments
  DType dtype = DType::f32;
  Dropout dropout = {};
  double magnitude = 1;  ///< of queries, keys and values
  unsigned seed = 1;

  int64_t rows() const {
    int64_t n = 0;
    for (int length : lengths) n += length;
    return n;
  }
  int64_t qkv_width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
  int64_t out_width() const { return shape.heads * shape.head_dim; }
};

/// Values that the case's dtype holds exactly.
inline std::vector<double> random_values(int64_t count, double magnitude, DType dtype, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0, magnitude);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& v : values) {
    const float f = static_cast<float>(normal(generator));
    v = rounded_to(dtype, f);
  }
  return values;
}

/// Sample ids and offsets of every row; segment s is sample 100 + s from offset 3 s on.
struct RowNames {
  std::vector<int64_t> ids;
  std::vector<int32_t> offsets;
  std::vector<int32_t> segments{0};

  explicit RowNames(const std::vector<int>& lengths, int first = 0) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int name = first + static_cast<int>(s);
      for (int t = 0; t < lengths[s]; ++t) {
        ids.push_back(100 + name);
        offsets.push_back(3 * name + t);
      }
      segments.push_back(segments.back() + lengths[s]);
    }
  }
};

struct AttentionResult {
  std::vector<double> out;   ///< [N, H D]
  std::vector<double> lse;   ///< [H, N]
  std::vector<double> dqkv;  ///< [N, (H + 2 G) D]
};

class NaiveAttention {
 public:
  NaiveAttention(const AttentionCase& c, const std::vector<double>& qkv, const std::vector<double>& dout)
      : c_(c), names_(c.lengths), qkv_(qkv), dout_(dout) {
    result_.out.assign(static_cast<size_t>(c.rows() * c.out_width()), 0);
    result_.lse.assign(static_cast<size_t>(c.rows() * c.shape.heads), 0);
    result_.dqkv.assign(qkv.size(), 0);
    for (size_t s = 0; s + 1 < names_.segments.size(); ++s) {
      for (int64_t h = 0; h < c.shape.heads; ++h) {
        for (int64_t q = names_.segments[s]; q < names_.segments[s + 1]; ++q) row(h, q, names_.segments[s]);
      }
    }
  }
  const AttentionResult& result() const { return result_; }
  /// sum(out * dout)
  double objective() const {
    double sum = 0;
    for (size_t i = 0; i < dout_.size(); ++i) sum += result_.out[i] * dout_[i];
    return sum;
  }

 private:
  size_t at(int64_t row, int64_t head) const {
    return static_cast<size_t>(row * c_.qkv_width() + head * c_.shape.head_dim);
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < c_.shape.head_dim; ++d) sum += a[d] * b[d];
    return sum;
  }

  void row(int64_t h, int64_t q, int64_t begin) {
    const AttentionShape& shape = c_.shape;
    const int64_t kv = h / (shape.heads / shape.kv_heads);
    const int64_t first = shape.window == 0 ? begin : std::max(begin, q - shape.window + 1);
    const int64_t count = q - first + 1;
    std::vector<double> p(static_cast<size_t>(count)), keep(p), dp(p), slope(p.size(), 1.0);
    double highest = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < count; ++j) {
      p[static_cast<size_t>(j)] = double{shape.scale} * dot(&qkv_[at(q, h)], &qkv_[at(first + j, shape.heads + kv)]);
      if (shape.softcap > 0) {
        const double t = std::tanh(p[static_cast<size_t>(j)] / shape.softcap);
        p[static_cast<size_t>(j)] = shape.softcap * t;
        slope[static_cast<size_t>(j)] = 1 - t * t;
      }
      highest = std::max(highest, p[static_cast<size_t>(j)]);
    }
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - highest);
    result_.lse[static_cast<size_t>(h * c_.rows() + q)] = highest + std::log(sum);
    double* out = &result_.out[static_cast<size_t>(q * c_.out_width() + h * shape.head_dim)];
    const double* dout = &dout_[static_cast<size_t>(q * c_.out_width() + h * shape.head_dim)];
    double mean = 0;  // of dp under p
    for (int64_t j = 0; j < count; ++j) {
      const size_t i = static_cast<size_t>(j);
      p[i] /= sum;
      const size_t query = static_cast<size_t>(q);
      const uint64_t element =
          ((static_cast<uint64_t>(h) << 24) + static_cast<uint64_t>(names_.offsets[query])) * (uint64_t{1} << 24) +
          static_cast<uint64_t>(names_.offsets[static_cast<size_t>(first + j)]);
      keep[i] = c_.dropout.active() ? c_.dropout.scale(static_cast<uint64_t>(names_.ids[query]), element) : 1;
      const size_t value = at(first + j, shape.heads + shape.kv_heads + kv);
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        out[d] += p[i] * keep[i] * qkv_[value + static_cast<size_t>(d)];
        result_.dqkv[value + static_cast<size_t>(d)] += p[i] * keep[i] * dout[d];
      }
      dp[i] = keep[i] * dot(dout, &qkv_[value]);
      mean += p[i] * dp[i];
    }
    for (int64_t j = 0; j < count; ++j) {
      const double ds = double{shape.scale} * slope[static_cast<size_t>(j)] * p[static_cast<size_t>(j)] *
                        (dp[static_cast<size_t>(j)] - mean);
      const size_t key = at(first + j, shape.heads + kv);
      for (size_t d = 0; d < static_cast<size_t>(shape.head_dim); ++d) {
        result_.dqkv[at(q, h) + d] += ds * qkv_[key + d];
        result_.dqkv[key + d] += ds * qkv_[at(q, h) + d];
      }
    }
  }

  const AttentionCase& c_;
  RowNames names_;
  const std::vector<double>& qkv_;
  const std::vector<double>& dout_;
  AttentionResult result_;
};

/// A tensor of the device that holds given values.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, std::initializer_list<int64_t> dims) : tensor(nullptr, dtype, dims) {
    buffer_ = DeviceBuffer(std::max<int64_t>(tensor.bytes(), 64));
    tensor.data = buffer_.data();
  }
  void set(const void* host) { copy_to_device(tensor.data, host, tensor.bytes(), stream()); }
  void set(const std::vector<double>& values) {
    std::vector<float> f(values.begin(), values.end());
    if (tensor.dtype == DType::f32) return set(f.data());
    tensor.dtype == DType::bf16 ? set(std::vector<bf16>(f.begin(), f.end()).data())
                                : set(std::vector<f16>(f.begin(), f.end()).data());
  }
  std::vector<double> values() const {
    if (tensor.dtype == DType::f32) return values_as<float>();
    return tensor.dtype == DType::bf16 ? values_as<bf16>() : values_as<f16>();
  }
  Tensor tensor;

 private:
  template <class T>
  std::vector<double> values_as() const {
    std::vector<T> stored(static_cast<size_t>(tensor.numel()));
    copy_to_host(stored.data(), tensor.data, tensor.bytes(), stream());
    stream().synchronize();
    std::vector<double> result;
    result.reserve(stored.size());
    for (const T& x : stored) result.push_back(static_cast<float>(x));
    return result;
  }
  DeviceBuffer buffer_;
};

/// Runs both kernels. Rows are named like the naive ones, from segment `first_name` on.
class KernelAttention {
 public:
  KernelAttention(const AttentionCase& c, const std::vector<double>& qkv, const std::vector<double>& dout,
                  int first_name = 0)
      : workspace(DType::u8, {attention_workspace_bytes(c.shape, c.rows())}) {
    const RowNames names(c.lengths, first_name);
    const int64_t n = c.rows();
    DeviceTensor ids(DType::i64, {n}), offsets(DType::i32, {n});
    DeviceTensor segments(DType::i32, {static_cast<int64_t>(c.lengths.size()) + 1});
    ids.set(names.ids.data());
    offsets.set(names.offsets.data());
    segments.set(names.segments.data());
    Batch batch;
    batch.tokens = n;
    batch.segment_count = static_cast<int64_t>(c.lengths.size());
    batch.longest_segment = *std::max_element(c.lengths.begin(), c.lengths.end());
    batch.segments = segments.tensor;
    batch.sequence_ids = ids.tensor;
    batch.sequence_offsets = offsets.tensor;

    DeviceTensor x(c.dtype, {n, c.qkv_width()}), dx(c.dtype, {n, c.qkv_width()});
    DeviceTensor y(c.dtype, {n, c.out_width()}), dy(c.dtype, {n, c.out_width()});
    DeviceTensor lse(DType::f32, {c.shape.heads, n});
    x.set(qkv);
    dy.set(dout);
    attention_forward(y.tensor, lse.tensor, x.tensor, batch, c.shape, c.dropout, workspace.tensor, stream());
    result.out = y.values();
    result.lse = lse.values();
    forward_counters = workspace.values_of_counters();
    attention_backward({dx.tensor, dy.tensor, y.tensor, lse.tensor, x.tensor}, batch, c.shape, c.dropout,
                       workspace.tensor, stream());
    result.dqkv = dx.values();
    backward_counters = workspace.values_of_counters();
  }

  /// Scratch memory filled with NaN: nothing may be read before it is written.
  struct Workspace : DeviceTensor {
    Workspace(DType dtype, std::initializer_list<int64_t> dims) : DeviceTensor(dtype, dims) {
      const std::vector<uint8_t> ones(static_cast<size_t>(tensor.bytes()), 0xFF);
      set(ones.data());
    }
    std::vector<int64_t> values_of_counters() const {
      std::vector<int64_t> head(2);
      copy_to_host(head.data(), tensor.data, 16, stream());
      stream().synchronize();
      return head;
    }
  };
  Workspace workspace;
  AttentionResult result;
  std::vector<int64_t> forward_counters;  ///< first words of the workspace after each pass
  std::vector<int64_t> backward_counters;
};

/// Largest |a - b| over the largest |b|.
inline double max_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    error = larger(error, std::abs(a[i] - b[i]));
    size = larger(size, std::abs(b[i]));
  }
  return error / size;
}

/// Root mean square of a - b over that of b.
inline double mean_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

}  // namespace llmtrain::test
