#include "kernels/activation.hpp"

#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/host/activation_loops.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

using ForwardLoop = void (*)(Activation, DType, bool slopes, void* y, void* h, void* up, int64_t n, float limit);

ForwardLoop forward_loop() {
#if defined(__x86_64__)
  if (processor_has(Instructions::avx512)) return activation_loop_avx512;
#endif
  return ActivationLoops<Float8>::forward;
}

/// Pointer to element `begin` in memory of the dtype.
void* from(const Tensor& t, int64_t begin) {
  return static_cast<char*>(t.data) + begin * static_cast<int64_t>(size_of(t.dtype));
}

/// out[n] = a[n] * b[n]; out may alias b.
template <class T>
void multiply(T* out, const T* a, const T* b, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    store_up_to(out + i, load_up_to(a + i, n - i) * load_up_to(b + i, n - i), n - i);
  }
}

/// Slopes: true if h is overwritten by the derivatives.
void forward(Activation activation, bool slopes, const Tensor& y, const Tensor& h, float limit) {
  const bool gated = is_gated(activation);
  LLMTRAIN_CHECK(is_compute_type(y.dtype) && y.dtype == h.dtype && y.rank == 2 && h.rank == 2 && y.dim(0) == h.dim(0) &&
                     h.dim(1) == (gated ? 2 : 1) * y.dim(1),
                 "activation: y [N, F] and h [N, F] (gated: [N, 2 F]) of one dtype: fp32, bf16 or fp16");
  const ForwardLoop loop = forward_loop();
  const int64_t width = y.dim(1);
  if (gated) {
    parallel_for(y.dim(0), [&](int64_t r) {
      const int64_t gate = r * 2 * width;
      loop(activation, y.dtype, slopes, from(y, r * width), from(h, gate), from(h, gate + width), width, limit);
    });
  } else {
    parallel_blocks(y.numel(), elementwise_block, [&](int64_t begin, int64_t end) {
      loop(activation, y.dtype, slopes, from(y, begin), from(h, begin), nullptr, end - begin, limit);
    });
  }
}

}  // namespace

void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream&, float limit) {
  const ProfileSpan span("activation_forward", [&] { return traffic({&y, &h, &h}); });
  forward(activation, true, y, h, limit);
}

void activation_value(Activation activation, const Tensor& y, const Tensor& h, Stream&, float limit) {
  const ProfileSpan span("activation_value", [&] { return traffic({&y, &h}); });
  forward(activation, false, y, h, limit);
}

void activation_backward(const Tensor& dh, const Tensor& dy, const Tensor& slope, Stream&) {
  const ProfileSpan span("activation_backward", [&] { return traffic({&dh, &dy, &slope}); });
  const bool gated = slope.rank == 2 && dy.rank == 2 && slope.dim(1) == 2 * dy.dim(1);
  LLMTRAIN_CHECK(dy.dtype == slope.dtype && dh.dtype == slope.dtype && dh.shape == slope.shape && dy.rank == 2 &&
                     dy.dim(0) == slope.dim(0) && (gated || dy.dim(1) == slope.dim(1)),
                 "activation: dy [N, F], and dh and slope [N, F] (gated: [N, 2 F]) of one dtype");
  host::dispatch(dy.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* out = dh.as<T>();
    const T *d = dy.as<T>(), *s = slope.as<T>();
    const int64_t width = dy.dim(1);
    if (gated) {
      parallel_for(dy.dim(0), [=](int64_t r) {
        for (const int64_t half : {2 * r * width, (2 * r + 1) * width}) {
          multiply(out + half, d + r * width, s + half, width);
        }
      });
    } else {
      parallel_blocks(dy.numel(), elementwise_block,
                      [=](int64_t begin, int64_t end) { multiply(out + begin, d + begin, s + begin, end - begin); });
    }
  });
}

}  // namespace llmtrain
