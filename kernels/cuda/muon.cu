#include "core/profile.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/muon.hpp"
#include "kernels/muon_arithmetic.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

struct Momentum {
  int64_t elements;
  bf16* update;
  float* m;
  const float* g;
  MuonMomentumFactors factors;

  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * Pack::size;
    Pack average = load_pack(m, i, elements), out{};
    const Pack gradient = load_pack(g, i, elements);
    for (int k = 0; k < Pack::size; ++k) out.v[k] = factors(average.v[k], gradient.v[k]);
    store_pack(m, i, elements, average);
    store_pack(update, i, elements, out);
  }
};

struct DecideDivisor {
  int64_t* squares;
  float epsilon;
  float* divisor;
  __device__ void operator()(int64_t /*one*/) const { *divisor = muon_divisor(squares, epsilon); }
};

struct Divide {
  int64_t elements;
  bf16* x;
  const float* divisor;

  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * Pack::size;
    Pack value = load_pack(x, i, elements);
    for (int k = 0; k < Pack::size; ++k) value.v[k] = value.v[k] / *divisor;
    store_pack(x, i, elements, value);
  }
};

/// to = to_factor * to + from_factor * from; the multiple of `from` is rounded first if `rounds_from`.
template <class To, class From>
struct Combine {
  int64_t elements;
  To* to;
  float to_factor;
  const From* from;
  float from_factor;
  bool rounds_from;

  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * Pack::size;
    Pack value = load_pack(to, i, elements);
    const Pack other = load_pack(from, i, elements);
    for (int k = 0; k < Pack::size; ++k) {
      value.v[k] = rounds_from ? std::fma(value.v[k], to_factor, rounded_product(from_factor, other.v[k]))
                               : std::fma(other.v[k], from_factor, rounded_product(value.v[k], to_factor));
    }
    store_pack(to, i, elements, value);
  }
};

int64_t packs(int64_t elements) { return (elements + Pack::size - 1) / Pack::size; }

}  // namespace

void muon_momentum(const Tensor& update, const Tensor& momentum, const Tensor& gradient, const MuonMomentum& step,
                   Stream& stream) {
  const ProfileSpan span("muon_momentum", [&] { return traffic({&update, &momentum, &momentum, &gradient}); });
  check_muon(update, {&momentum, &gradient});
  const int64_t n = update.numel();
  for_each(packs(n), stream,
           Momentum{n, update.as<bf16>(), momentum.as<float>(), gradient.as<float>(), MuonMomentumFactors(step)});
}

void muon_normalize(const Tensor& x, const Tensor& squares, float epsilon, const Tensor& divisor, Stream& stream) {
  const ProfileSpan span("muon_normalize", [&] { return traffic({&x, &x}); });
  check_muon(x, {});
  for_each(1, stream, DecideDivisor{integers_of(squares), epsilon, divisor.as<float>()});
  for_each(packs(x.numel()), stream, Divide{x.numel(), x.as<bf16>(), divisor.as<float>()});
}

void muon_add_product(const Tensor& x, float a, const Tensor& product, float c, Stream& stream) {
  const ProfileSpan span("muon_add_product", [&] { return traffic({&x, &x, &product}); });
  check_muon(x, {&product});
  for_each(packs(x.numel()), stream, Combine<bf16, float>{x.numel(), x.as<bf16>(), a, product.as<float>(), c, true});
}

void muon_apply(const Tensor& master, const Tensor& update, float decay, float factor, Stream& stream) {
  const ProfileSpan span("muon_apply", [&] { return traffic({&master, &master, &update}); });
  check_muon(update, {&master});
  for_each(packs(master.numel()), stream,
           Combine<float, bf16>{master.numel(), master.as<float>(), decay, update.as<bf16>(), factor, false});
}

}  // namespace llmtrain
