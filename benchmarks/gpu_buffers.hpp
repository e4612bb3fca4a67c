#pragma once
// Operands of kernels on a GPU, and the time of a call, for gpu_kernels_bench and gpu_probe.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <vector>

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/elementwise.hpp"

namespace llmtrain {

struct Buffers {
  Stream& stream;
  std::vector<DeviceBuffer> owned = {};

  Tensor make(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t(nullptr, dtype, dims);
    owned.emplace_back(t.bytes());
    t.data = owned.back().data();
    return t;
  }
  Tensor filled(DType dtype, std::initializer_list<int64_t> dims, float value) {
    const Tensor t = make(dtype, dims);
    fill(t, value, stream);
    return t;
  }
  /// Zeros would run faster than random numbers.
  Tensor random(DType dtype, std::initializer_list<int64_t> dims, double std = 1) {
    const Tensor t = make(dtype, dims);
    if (dtype == DType::f32) {
      fill_normal(t, std, owned.size(), 0, stream);
      return t;
    }
    const DeviceBuffer wide(4 * t.numel());
    const Tensor normal(wide.data(), DType::f32, {t.numel()});
    fill_normal(normal, std, owned.size(), 0, stream);
    cast(t.reshaped({t.numel()}), normal, stream);
    stream.synchronize();
    return t;
  }
  template <class T>
  Tensor of(DType dtype, const std::vector<T>& values) {
    const Tensor t = make(dtype, {static_cast<int64_t>(values.size())});
    copy_to_device(t.data, values.data(), t.bytes(), stream);
    stream.synchronize();
    return t;
  }
  /// A batch of whole documents of `length` tokens, without ids and targets.
  Batch batch(int64_t documents, int64_t length) {
    std::vector<int32_t> segments, offsets;
    std::vector<int64_t> ids;
    for (int64_t d = 0; d <= documents; ++d) segments.push_back(static_cast<int32_t>(d * length));
    for (int64_t row = 0; row < documents * length; ++row) {
      ids.push_back(row / length);
      offsets.push_back(static_cast<int32_t>(row % length));
    }
    Batch batch;
    batch.tokens = documents * length;
    batch.segment_count = documents;
    batch.longest_segment = length;
    batch.segments = of(DType::i32, segments);
    batch.sequence_ids = of(DType::i64, ids);
    batch.positions = batch.sequence_offsets = of(DType::i32, offsets);
    return batch;
  }
};

/// Ids of tokens with the frequencies of words: rank k in proportion to 1 / k.
inline std::vector<int32_t> word_ids(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t row = 0; row < rows; ++row) {
    const double uniform = static_cast<double>(row * 40503 % 65536) / 65536;
    ids.push_back(static_cast<int32_t>(std::pow(static_cast<double>(vocabulary), uniform)) - 1);
  }
  return ids;
}

/// Median over seven rounds of the mean of enough calls that the launch time does not matter. `once`: of one call.
inline double seconds(Stream& stream, const std::function<void()>& call, bool once = false) {
  using Clock = std::chrono::steady_clock;
  constexpr int rounds = 7;
  const auto timed = [&](int calls) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  if (once) return timed(1);
  const int calls = std::clamp(static_cast<int>(0.05 / std::max(timed(3), 1e-6)), 3, 2000);
  std::array<double, rounds> all{};
  for (double& one : all) one = timed(calls);
  std::ranges::sort(all);
  return all[rounds / 2];
}

}  // namespace llmtrain
