#include "kernels/muon.hpp"

#include "core/profile.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/muon_arithmetic.hpp"

namespace llmtrain {

void muon_momentum(const Tensor& update, const Tensor& momentum, const Tensor& gradient, const MuonMomentum& step,
                   Stream& /*stream*/) {
  const ProfileSpan span("muon_momentum", [&] { return traffic({&update, &momentum, &momentum, &gradient}); });
  check_muon(update, {&momentum, &gradient});
  const MuonMomentumFactors f(step);
  auto* out = update.as<bf16>();
  auto* m = momentum.as<float>();
  const auto* g = gradient.as<float>();
  host::parallel_blocks(update.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = bf16(f(m[i], g[i]));
  });
}

void muon_normalize(const Tensor& x, const Tensor& squares, float epsilon, const Tensor& to, Stream& /*stream*/) {
  const ProfileSpan span("muon_normalize", [&] { return traffic({&x, &x}); });
  check_muon(x, {});
  const float divisor = *to.as<float>() = muon_divisor(integers_of(squares), epsilon);
  auto* values = x.as<bf16>();
  host::parallel_blocks(x.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) values[i] = bf16(static_cast<float>(values[i]) / divisor);
  });
}

void muon_add_product(const Tensor& x, float a, const Tensor& product, float c, Stream& /*stream*/) {
  const ProfileSpan span("muon_add_product", [&] { return traffic({&x, &x, &product}); });
  check_muon(x, {&product});
  auto* values = x.as<bf16>();
  const auto* p = product.as<float>();
  host::parallel_blocks(x.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      values[i] = bf16(std::fma(static_cast<float>(values[i]), a, rounded_product(c, p[i])));
    }
  });
}

void muon_apply(const Tensor& master, const Tensor& update, float decay, float factor, Stream& /*stream*/) {
  const ProfileSpan span("muon_apply", [&] { return traffic({&master, &master, &update}); });
  check_muon(update, {&master});
  auto* values = master.as<float>();
  const auto* u = update.as<bf16>();
  host::parallel_blocks(master.numel(), host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      values[i] = std::fma(static_cast<float>(u[i]), factor, rounded_product(values[i], decay));
    }
  });
}

}  // namespace llmtrain
