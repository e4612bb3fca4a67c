#include "kernels/reduce.hpp"

#include <mutex>
#include <vector>

#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t chunk = 256;
constexpr int64_t chunks_per_task = 256;

/// Sum of squares of at most one chunk: element i belongs to lane i mod 8, lanes are folded pairwise.
double squares(const float* x, int64_t n) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) lane[k] += double{x[i + k]} * double{x[i + k]};
  }
  for (int k = 0; i + k < n; ++k) lane[k] += double{x[i + k]} * double{x[i + k]};
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// add(part, begin, end) for tasks of whole chunks; the parts are exact, so that their order does not matter.
template <class Add>
void exactly(ExactSum& sum, int64_t n, const Add& add) {
  std::mutex mutex;
  parallel_blocks(n, chunk * chunks_per_task, [&](int64_t begin, int64_t end) {
    ExactSum part;
    add(part, begin, end);
    const std::lock_guard lock(mutex);
    sum.add(part);
  });
}

uint64_t mixed(uint64_t h) {  // finalizer of MurmurHash3
  h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDu;
  h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53u;
  return h ^ (h >> 33);
}

}  // namespace

void sum_of_squares(ExactSum& sum, const Tensor& x, Stream& /*stream*/) {
  const float* values = x.as<float>();
  exactly(sum, x.numel(), [values](ExactSum& part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += chunk) part.add(squares(values + i, std::min(chunk, end - i)));
  });
}

void sum_of_products(ExactSum& sum, const Tensor& x, const Tensor& weights, Stream& /*stream*/) {
  const float* values = x.as<float>();
  const float* factors = weights.empty() ? nullptr : weights.as<float>();
  LLMTRAIN_CHECK(factors == nullptr || weights.numel() == x.numel(), "one weight per element");
  exactly(sum, x.numel(), [=](ExactSum& part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      part.add(double{values[i]} * (factors != nullptr ? double{factors[i]} : 1.0));  // exact: 24 x 24 bits
    }
  });
}

uint64_t chunked_hash(const Tensor& x, int64_t first_element, Stream& /*stream*/) {
  LLMTRAIN_CHECK(first_element % chunk == 0, "a shard begins at a chunk");
  const int64_t n = x.numel();
  const auto* words = static_cast<const uint32_t*>(x.data);
  LLMTRAIN_CHECK(size_of(x.dtype) == 4, "hashes are of 32-bit elements");
  std::mutex mutex;
  uint64_t total = 0;
  parallel_blocks(n, chunk * chunks_per_task, [&](int64_t begin, int64_t end) {
    uint64_t part = 0;
    for (int64_t c = begin; c < end; c += chunk) {
      uint64_t h = mixed(static_cast<uint64_t>((first_element + c) / chunk) + 0x9E3779B97F4A7C15u);
      for (int64_t i = c; i < std::min(c + chunk, end); ++i) h = mixed(h + words[i]);
      part += h;
    }
    const std::lock_guard lock(mutex);
    total += part;
  });
  return total;
}

}  // namespace llmtrain
