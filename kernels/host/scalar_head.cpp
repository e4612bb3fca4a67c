#include "kernels/scalar_head.hpp"

#include <array>
#include <cmath>

#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& weights,
                         Stream& /*stream*/) {
  constexpr int64_t lanes = 32;
  const int64_t columns = w.numel();
  float* to = out.as<float>();
  const float* counts = weights.as<float>();
  host::dispatch(x.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *rows = x.as<T>(), *factors = w.as<T>();
    host::parallel_for(out.numel(), [=](int64_t i) {
      std::array<double, lanes> sum{};
      if (counts[i] != 0) {
        const T* row = rows + i * columns;
        for (int64_t c = 0; c < columns; ++c) {
          sum[static_cast<size_t>(c % lanes)] +=
              static_cast<double>(host::load(row + c)) * static_cast<double>(host::load(factors + c));
        }
        for (size_t distance = lanes / 2; distance > 0; distance /= 2) {
          for (size_t lane = 0; lane < distance; ++lane) sum[lane] += sum[lane + distance];
        }
      }
      to[i] = static_cast<float>(sum[0]);
    });
  });
}

void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& /*stream*/) {
  constexpr int64_t block = 128;
  const int64_t columns = dw.numel(), count = dout.numel();
  float* to = dw.as<float>();
  const float* factors = dout.as<float>();
  host::dispatch(x.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* rows = x.as<T>();
    host::parallel_blocks(columns, block, [=](int64_t begin, int64_t end) {
      std::array<double, block> sum{};
      for (int64_t i = 0; i < count; ++i) {
        if (factors[i] == 0) continue;
        for (int64_t c = begin; c < end; ++c) {
          sum[static_cast<size_t>(c - begin)] +=
              static_cast<double>(factors[i]) * static_cast<double>(host::load(rows + i * columns + c));
        }
      }
      for (int64_t c = begin; c < end; ++c) {
        const auto value = static_cast<float>(sum[static_cast<size_t>(c - begin)]);
        to[c] = accumulate ? to[c] + value : value;
      }
    });
  });
}

void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate,
                                Stream& /*stream*/) {
  const int64_t columns = w.numel();
  const float* factors = dout.as<float>();
  host::dispatch(dx.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* rows = dx.as<T>();
    const T* by_column = w.as<T>();
    host::parallel_for(dout.numel(), [=](int64_t i) {
      for (int64_t c = 0; c < columns; ++c) {
        T* to = rows + i * columns + c;
        host::store(to, std::fma(factors[i], host::load(by_column + c), accumulate ? host::load(to) : 0.0F));
      }
    });
  });
}

}  // namespace llmtrain
