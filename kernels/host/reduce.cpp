#include "kernels/reduce.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/params.hpp"
#include "core/profile.hpp"
#include "kernels/chunk_hash.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using Float4 [[gnu::vector_size(16)]] = float;
using Double4 [[gnu::vector_size(32)]] = double;

/// Sum of squares of 256 numbers: squares are exact in double, element i goes to lane i mod 16.
double chunk_of_squares(const float* x) {
  Double4 lanes[4] = {};
  for (int64_t i = 0; i < chunk_elements; i += 16) {
    for (int64_t l = 0; l < 4; ++l) {
      Float4 v;
      std::memcpy(&v, x + i + 4 * l, sizeof v);
      const Double4 wide = __builtin_convertvector(v, Double4);
      lanes[l] += wide * wide;
    }
  }
  const Double4 s = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

/// Computes one partial result of type T per range of [0, count), with as many ranges as threads: fill(partial, begin,
/// end). The combination of the partial results must not depend on the ranges.
template <class T, class Fill>
const std::vector<T>& partial_results(int64_t count, const Fill& fill) {
  static thread_local std::vector<T> storage;
  const int64_t ranges = std::max<int64_t>(1, std::min<int64_t>(host::thread_count(), count));
  storage.assign(static_cast<size_t>(ranges), T());
  T* partial = storage.data();
  host::parallel_for(ranges, [&fill, partial, count, ranges](int64_t r) {
    fill(partial[r], count * r / ranges, count * (r + 1) / ranges);
  });
  return storage;
}

uint64_t hash_chunk(const char* bytes, int64_t count, uint64_t index) {
  const int64_t whole = count / 8;
  uint64_t sum = 0;
  for (int64_t i = 0; i < whole; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * 8, sizeof word);
    sum += word_hash(word, static_cast<uint64_t>(i));
  }
  if (whole * 8 < count) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + whole * 8, static_cast<size_t>(count - whole * 8));
    sum += word_hash(word, static_cast<uint64_t>(whole));
  }
  return chunk_hash(sum, index);
}

}  // namespace

void sum_of_squares(ExactSum& sum, const Tensor& x, Stream& /*stream*/) {
  const ProfileSpan span("sum_of_squares", [&] { return traffic({&x}); });
  const float* data = x.as<float>();
  const int64_t n = x.numel();
  const int64_t chunks = (n + chunk_elements - 1) / chunk_elements;
  const auto& parts = partial_results<ExactSum>(chunks, [=](ExactSum& part, int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const float* first = data + chunk * chunk_elements;
      const int64_t count = std::min(chunk_elements, n - chunk * chunk_elements);
      if (count == chunk_elements) {
        part.add(chunk_of_squares(first));
      } else {
        float padded[chunk_elements] = {};
        std::copy(first, first + count, padded);
        part.add(chunk_of_squares(padded));
      }
    }
  });
  for (const ExactSum& part : parts) sum.add(part);
}

void sum_of_products(ExactSum& sum, const Tensor& x, const Tensor& weights, Stream& /*stream*/) {
  const ProfileSpan span("sum_of_products", [&] { return traffic({&x, &weights}); });
  LLMTRAIN_CHECK(weights.empty() || weights.numel() == x.numel(), "one weight for each element");
  const float* data = x.as<float>();
  const float* factors = weights.empty() ? nullptr : weights.as<float>();
  const auto& parts = partial_results<ExactSum>(x.numel(), [=](ExactSum& part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      part.add(factors == nullptr ? double{data[i]} : double{data[i]} * double{factors[i]});
    }
  });
  for (const ExactSum& part : parts) sum.add(part);
}

namespace {

void add_integers(const Tensor& sum, ExactSum part) {
  LLMTRAIN_CHECK(sum.dtype == DType::i64 && sum.numel() == ExactSum::integer_count, "a sum is an ExactSum's integers");
  part.carry();
  for (size_t i = 0; i < part.limbs().size(); ++i) sum.as<int64_t>()[i] += part.limbs()[i];
}

}  // namespace

void sum_of_squares(const Tensor& sum, const Tensor& x, Stream& stream) {
  ExactSum part;
  sum_of_squares(part, x, stream);
  add_integers(sum, part);
}

void sum_of_products(const Tensor& sum, const Tensor& x, const Tensor& weights, Stream& stream) {
  ExactSum part;
  sum_of_products(part, x, weights, stream);
  add_integers(sum, part);
}

uint64_t chunked_hash(const Tensor& x, int64_t first_element, Stream& /*stream*/) {
  const ProfileSpan span("chunked_hash", [&] { return traffic({&x}); });
  LLMTRAIN_CHECK(first_element % chunk_elements == 0, "a hashed shard starts at a whole chunk");
  const auto* bytes = static_cast<const char*>(x.data);
  const auto chunk_bytes = chunk_elements * static_cast<int64_t>(size_of(x.dtype));
  const int64_t total = x.bytes();
  const int64_t first_chunk = first_element / chunk_elements;
  const int64_t chunks = (total + chunk_bytes - 1) / chunk_bytes;
  const auto& parts = partial_results<uint64_t>(chunks, [=](uint64_t& part, int64_t begin, int64_t end) {
    uint64_t hash = 0;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t offset = chunk * chunk_bytes;
      hash +=
          hash_chunk(bytes + offset, std::min(chunk_bytes, total - offset), static_cast<uint64_t>(first_chunk + chunk));
    }
    part = hash;
  });
  uint64_t hash = 0;
  for (const uint64_t part : parts) hash += part;
  return hash;
}

}  // namespace llmtrain
