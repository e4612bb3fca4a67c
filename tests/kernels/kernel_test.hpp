#pragma once
// Arrays on the device for tests of kernels: written and read as double, rounded to their dtype on the way in.

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.hpp"
#include "core/philox.hpp"
#include "device/device.hpp"
#include "harness/errors.hpp"
#include "harness/harness.hpp"
#include "kernels/quantized_matrix.hpp"

namespace llmtrain::test {

using Values = std::vector<double>;

/// Uniform in (-scale, scale).
inline Values random_values(int64_t n, uint64_t seed, double scale = 1.0) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = scale * (2 * random_uniform(random_bits(seed, 1, i)) - 1);
  return v;
}

/// Whole numbers from -limit to limit.
inline Values random_integers(int64_t n, uint64_t seed, int limit) {
  Values v = random_values(n, seed, limit + 0.499);
  for (double& x : v) x = std::round(x);
  return v;
}

class Array {
 public:
  Array() = default;
  /// Zeros.
  Array(DType dtype, std::initializer_list<int64_t> shape) {
    tensor_ = Tensor(nullptr, dtype, shape);
    buffer_ = DeviceBuffer(tensor_.bytes());
    tensor_.data = buffer_.data();
  }
  Array(DType dtype, std::initializer_list<int64_t> shape, const Values& values) : Array(dtype, shape) { set(values); }

  operator const Tensor&() const { return tensor_; }  // NOLINT: stands for its tensor in calls
  operator WeightMatrix() const { return tensor_; }   // NOLINT: likewise
  const Tensor& tensor() const { return tensor_; }

  void set(const Values& values) {
    LLMTRAIN_CHECK(static_cast<int64_t>(values.size()) == tensor_.numel(), "test: values do not fill the array");
    switch (tensor_.dtype) {
      case DType::f32:
        return upload<float>(values);
      case DType::bf16:
        return upload<bf16>(values);
      case DType::f16:
        return upload<f16>(values);
      case DType::i32:
        return upload<int32_t>(values);
      case DType::i64:
        return upload<int64_t>(values);
      default:
        LLMTRAIN_CHECK(false, "test: dtype");
    }
  }
  Values values() const {
    switch (tensor_.dtype) {
      case DType::f32:
        return download<float>();
      case DType::bf16:
        return download<bf16>();
      case DType::f16:
        return download<f16>();
      case DType::i32:
        return download<int32_t>();
      default:
        LLMTRAIN_CHECK(false, "test: dtype");
    }
    return {};
  }
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> v(static_cast<size_t>(tensor_.bytes()));
    copy_to_host(v.data(), tensor_.data, tensor_.bytes(), stream());
    stream().synchronize();
    return v;
  }

 private:
  template <class T>
  void upload(const Values& values) {
    std::vector<T> typed(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
        typed[i] = T(static_cast<float>(values[i]));
      } else {
        typed[i] = static_cast<T>(values[i]);
      }
    }
    copy_to_device(tensor_.data, typed.data(), tensor_.bytes(), stream());
    stream().synchronize();
  }
  template <class T>
  Values download() const {
    std::vector<T> typed(static_cast<size_t>(tensor_.numel()));
    copy_to_host(typed.data(), tensor_.data, tensor_.bytes(), stream());
    stream().synchronize();
    Values v;
    v.reserve(typed.size());
    for (const T& x : typed) v.push_back(static_cast<double>(static_cast<float>(x)));
    return v;
  }

  DeviceBuffer buffer_;
  Tensor tensor_;
};

/// Half a unit in the last place, relative, of a stored number (of fp16 a normal one: from 2^-14 on).
inline double rounding(DType dtype) {
  if (dtype == DType::f16) return 0x1p-11;
  return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24;
}

/// Largest error of a number of about `value` when it is stored; numbers of fp16 below 2^-14 are multiples of 2^-24.
inline double storing_error(DType dtype, double value) {
  return std::fmax(rounding(dtype) * std::fabs(value), dtype == DType::f16 ? 0x1p-25 : 0.0);
}

/// A kernel does not support two different 16-bit types in one call.
inline bool do_mix(DType a, DType b) { return a == b || a == DType::f32 || b == DType::f32; }

/// |actual - expected| <= bound(i) for every i.
template <class Bound>
void expect_close(const Values& actual, const Values& expected, const Bound& bound, const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size());
  size_t bad = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::fabs(actual[i] - expected[i]) <= bound(i)) continue;
    if (++bad <= 3) {
      ADD_FAILURE() << what << " element " << i << ": " << actual[i] << ", expected " << expected[i] << " within "
                    << bound(i);
    }
  }
  EXPECT_EQ(bad, 0u) << what << ": elements out of " << actual.size();
}

inline double largest(const Values& v) {
  double m = 0;
  for (const double x : v) m = larger(m, std::fabs(x));
  return m;
}

using Bytes = std::vector<unsigned char>;

/// run(changed) computes from the same data each time (changed: from different data) and returns the result's bytes.
/// They must not depend on the number of threads; the changed data are the control.
inline void expect_same_bits_for_threads(const std::function<Bytes(bool changed)>& run) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Bytes one = run(false);
  EXPECT_NE(run(true), one) << "control: other data must give other bits";
  for (const int threads : {2, 3, 4}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(run(false), one) << threads << " threads";
  }
  omp_set_num_threads(before);
}

/// A batch of N rows in sequences of `length` rows, first sequence id 5.
class TestBatch {
 public:
  TestBatch(int64_t n, int64_t length, int64_t vocabulary, uint64_t seed) {
    Values ids = random_values(n, seed, 0.5), rows, sequences;
    for (double& id : ids) id = std::floor((id + 0.5) * static_cast<double>(vocabulary));
    for (int64_t i = 0; i < n; ++i) {
      rows.push_back(static_cast<double>(i % length));
      const int64_t sequence = 5 + i / length;
      sequences.push_back(static_cast<double>(sequence));
    }
    ids_ = Array(DType::i32, {n}, ids);
    rows_ = Array(DType::i32, {n}, rows);
    sequences_ = Array(DType::i64, {n}, sequences);
    batch_.tokens = n;
    batch_.ids = ids_;
    batch_.positions = rows_;
    batch_.sequence_offsets = rows_;
    batch_.sequence_ids = sequences_;
  }
  operator const Batch&() const { return batch_; }  // NOLINT: stands for its batch in calls
  Values ids() const { return ids_.values(); }
  Values positions() const { return rows_.values(); }
  static uint64_t sequence(int64_t row, int64_t length) { return static_cast<uint64_t>(5 + row / length); }

 private:
  Array ids_, rows_, sequences_;
  Batch batch_;
};

/// d/dx[i] of sum(f(x) * weights) by central differences in double.
inline Values numeric_gradient(const std::function<Values(const Values&)>& f, Values x, const Values& weights,
                               double step = 1e-5) {
  const auto total = [&] {
    const Values y = f(x);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
    return sum;
  };
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double up = total();
    x[i] = at - step;
    gradient[i] = (up - total()) / (2 * step);
    x[i] = at;
  }
  return gradient;
}

}  // namespace llmtrain::test
