#include "kernels/scalar_head.hpp"

#include <array>
#include <cmath>

#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& weights,
                         Stream& /*stream*/) {
  constexpr int64_t lanes = 32;
  const int64_t columns = x.dim(1), outputs = w.numel() / columns;
  float* to = out.as<float>();
  const float* counts = weights.as<float>();
  host::dispatch(x.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *rows = x.as<T>(), *matrix = w.as<T>(), *added = bias.empty() ? nullptr : bias.as<T>();
    host::parallel_for(out.numel(), [=](int64_t e) {
      const int64_t i = e / outputs, k = e % outputs;
      std::array<double, lanes> sum{};
      if (counts[i] != 0) {
        const T *row = rows + i * columns, *factors = matrix + k * columns;
        for (int64_t c = 0; c < columns; ++c) {
          sum[static_cast<size_t>(c % lanes)] +=
              static_cast<double>(host::load(row + c)) * static_cast<double>(host::load(factors + c));
        }
        for (size_t distance = lanes / 2; distance > 0; distance /= 2) {
          for (size_t lane = 0; lane < distance; ++lane) sum[lane] += sum[lane + distance];
        }
        if (added != nullptr) sum[0] += static_cast<double>(host::load(added + k));
      }
      to[e] = static_cast<float>(sum[0]);
    });
  });
}

void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& /*stream*/) {
  constexpr int64_t block = 128;
  const int64_t columns = x.dim(1), outputs = dw.numel() / columns, count = x.dim(0);
  float* to = dw.as<float>();
  const float* factors = dout.as<float>();
  host::dispatch(x.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* rows = x.as<T>();
    for (int64_t k = 0; k < outputs; ++k) {
      host::parallel_blocks(columns, block, [=](int64_t begin, int64_t end) {
        std::array<double, block> sum{};
        for (int64_t i = 0; i < count; ++i) {
          const float factor = factors[i * outputs + k];
          if (factor == 0) continue;
          for (int64_t c = begin; c < end; ++c) {
            sum[static_cast<size_t>(c - begin)] +=
                static_cast<double>(factor) * static_cast<double>(host::load(rows + i * columns + c));
          }
        }
        for (int64_t c = begin; c < end; ++c) {
          const auto value = static_cast<float>(sum[static_cast<size_t>(c - begin)]);
          float& place = to[k * columns + c];
          place = accumulate ? place + value : value;
        }
      });
    }
  });
}

void scalar_head_backward_bias(const Tensor& db, const Tensor& dout, bool accumulate, Stream& /*stream*/) {
  const int64_t outputs = db.numel(), count = dout.numel() / outputs;
  float* to = db.as<float>();
  const float* factors = dout.as<float>();
  host::parallel_for(outputs, [=](int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(factors[i * outputs + k]);
    to[k] = accumulate ? to[k] + static_cast<float>(sum) : static_cast<float>(sum);
  });
}

void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate,
                                Stream& /*stream*/) {
  const int64_t columns = dx.dim(1), outputs = w.numel() / columns;
  const float* factors = dout.as<float>();
  host::dispatch(dx.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* rows = dx.as<T>();
    const T* matrix = w.as<T>();
    host::parallel_for(dx.dim(0), [=](int64_t i) {
      for (int64_t c = 0; c < columns; ++c) {
        T* to = rows + i * columns + c;
        float sum = accumulate ? host::load(to) : 0.0F;
        for (int64_t k = 0; k < outputs; ++k) {
          sum = std::fma(factors[i * outputs + k], host::load(matrix + k * columns + c), sum);
        }
        host::store(to, sum);
      }
    });
  });
}

}  // namespace llmtrain
