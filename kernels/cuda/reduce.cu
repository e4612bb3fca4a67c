#include <cstring>

#include "core/params.hpp"
#include "core/profile.hpp"
#include "kernels/chunk_hash.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/reduce.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Integer sums of a block; every thread that adds has its own, without atomics. They fill the default limit of shared
/// memory.
constexpr int sums_of_block = 64;
constexpr int64_t max_blocks = 132 * 6;  ///< for an H200, six blocks per multiprocessor

struct BlockSums {
  int64_t (*integers)[sums_of_block];
  __device__ void add(int sum, double value) const {
    const ExactTerm term(value);
    for (int i = 0; i < term.count; ++i) integers[term.first + i][sum] += term.parts[i];
  }
};

/// terms(sums) adds a block's terms; their sums go to partial[integer][block].
template <class Terms>
struct SumTerms {
  static constexpr int threads = Terms::threads;
  Terms terms;
  int64_t* partial;
  __device__ void operator()() const {
    LLMTRAIN_SHARED(int64_t[ExactSum::integer_count][sums_of_block], integers);
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < ExactSum::integer_count * sums_of_block; i += threads) {
      integers[i / sums_of_block][i % sums_of_block] = 0;
    }
    __syncthreads();
    terms(BlockSums{integers});
    __syncthreads();
    for (int i = thread / warp_lanes; i < ExactSum::integer_count; i += threads / warp_lanes) {
      int64_t sum = 0;
      for (int j = lane(); j < sums_of_block; j += warp_lanes) sum += integers[i][j];
      sum = warp_sum(sum);
      if (lane() == 0) partial[i * static_cast<int64_t>(gridDim.x) + blockIdx.x] = sum;
    }
  }
};

struct FoldBlocks {
  int64_t blocks;
  const int64_t* partial;
  int64_t* sum;
  __device__ void operator()(int64_t integer) const {
    int64_t part = 0;
    for (int64_t block = lane(); block < blocks; block += warp_lanes) part += partial[integer * blocks + block];
    part = warp_sum(part);
    if (lane() == 0) sum[integer] += part;
  }
};

/// Terms of some blocks' work, and the sum they are added to. Integer sums do not depend on the order: any grid gives
/// the same.
template <class Terms>
struct TermsToAdd {
  int64_t work;
  Terms terms;

  int64_t blocks() const { return std::min(max_blocks, work); }
  /// `partial`: room for one sum per block.
  void add_to(int64_t* sum, int64_t* partial, Stream& stream) const {
    launch({blocks()}, stream, SumTerms<Terms>{terms, partial});
    for_each_warp(ExactSum::integer_count, stream, FoldBlocks{blocks(), partial, sum});
  }
};

constexpr int64_t sum_bytes = ExactSum::integer_count * sizeof(int64_t);

template <class Terms>
void add_terms(const Tensor& sum, const TermsToAdd<Terms>& terms, Stream& stream) {
  LLMTRAIN_CHECK(sum.dtype == DType::i64 && sum.numel() == ExactSum::integer_count, "a sum is an ExactSum's integers");
  if (terms.work == 0) return;
  terms.add_to(sum.as<int64_t>(), static_cast<int64_t*>(scratch(terms.blocks() * sum_bytes)), stream);
}

template <class Terms>
void add_terms(ExactSum& sum, const TermsToAdd<Terms>& terms, Stream& stream) {
  if (terms.work == 0) return;
  auto* result = static_cast<int64_t*>(scratch((terms.blocks() + 1) * sum_bytes));
  fill_zero(result, sum_bytes, stream);
  terms.add_to(result, result + ExactSum::integer_count, stream);
  ExactSum part;
  copy_to_host(part.limbs().data(), result, sum_bytes, stream);
  stream.synchronize();
  sum.add(part);
}

/// Sums of squares of 256 numbers, in double, where squares are exact. Element i goes to lane i mod 16, as on the host;
/// each of four threads has four lanes.
struct Squares {
  static constexpr int threads_of_chunk = 4;
  static constexpr int threads = sums_of_block * threads_of_chunk;
  const float* x;
  int64_t elements, chunks;

  __device__ void operator()(const BlockSums& sums) const {
    const int sum = static_cast<int>(threadIdx.x) / threads_of_chunk;
    const int place = static_cast<int>(threadIdx.x) % threads_of_chunk * static_cast<int>(Pack::size);
    const int64_t stride = static_cast<int64_t>(gridDim.x) * sums_of_block;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * sums_of_block; first < chunks; first += stride) {
      const int64_t chunk = first + sum;
      const double squares = of_chunk(x + chunk * chunk_elements, elements - chunk * chunk_elements, place);
      if (place == 0 && chunk < chunks) sums.add(sum, squares);
    }
  }

  /// The reduction, the same in the four threads.
  __device__ double of_chunk(const float* in, int64_t count, int place) const {
    constexpr int64_t step = threads_of_chunk * Pack::size;
    double lanes[Pack::size] = {};
    const auto add = [&](const float* v) {
      for (int k = 0; k < Pack::size; ++k) lanes[k] = fma(double{v[k]}, double{v[k]}, lanes[k]);
    };
    using Raw = RawPack<float, Pack::size>;
    if (count >= chunk_elements && reinterpret_cast<uintptr_t>(in) % sizeof(Raw) == 0) {  // independent loads
      for (int64_t i = 0; i < chunk_elements; i += step) add(reinterpret_cast<const Raw*>(in + place + i)->v);
    } else {
      const int64_t end = count < chunk_elements ? count : chunk_elements;
      for (int64_t i = 0; i < chunk_elements; i += step) add(load_pack(in, place + i, end).v);
    }
    for (int distance = 1; distance < threads_of_chunk; distance *= 2) {
      for (double& l : lanes) l += __shfl_xor_sync(0xFFFFFFFFu, l, distance);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
};

struct Products {
  static constexpr int threads = sums_of_block;
  const float *x, *weights;
  int64_t elements;
  __device__ void operator()(const BlockSums& sums) const {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * threads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; i < elements; i += stride) {
      const double value = x[i];  // products of two floats are exact
      sums.add(static_cast<int>(threadIdx.x), weights == nullptr ? value : value * double{weights[i]});
    }
  }
};

/// A warp per chunk; sums of integers.
struct HashChunks {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_lanes;
  static constexpr int64_t access = 16;
  const unsigned char* bytes;
  int64_t total, chunk_bytes, chunks;
  uint64_t first_chunk;
  uint64_t* partial;

  struct alignas(access) Words {
    uint64_t v[2];
  };
  /// Zero bytes past the end.
  __device__ static Words load_words(const unsigned char* at, int64_t count) {
    if (count >= access && reinterpret_cast<uintptr_t>(at) % access == 0) return *reinterpret_cast<const Words*>(at);
    Words words{};
    for (int i = 0; i < access && i < count; ++i) words.v[i / 8] |= uint64_t{at[i]} << (i % 8 * 8);
    return words;
  }

  __device__ void operator()() const {
    LLMTRAIN_SHARED(uint64_t[warps], of_warps);
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
    uint64_t hash = 0;
    for (int64_t chunk = static_cast<int64_t>(blockIdx.x) * warps + warp; chunk < chunks;
         chunk += static_cast<int64_t>(gridDim.x) * warps) {
      const int64_t offset = chunk * chunk_bytes, count = std::min(chunk_bytes, total - offset);
      uint64_t sum = 0;
      for (int64_t at = lane() * access; at < count; at += warp_lanes * access) {
        const Words words = load_words(bytes + offset + at, count - at);
        const auto index = static_cast<uint64_t>(at / 8);
        sum += word_hash(words.v[0], index);
        if (at + 8 < count) sum += word_hash(words.v[1], index + 1);
      }
      hash += chunk_hash(warp_sum(sum), first_chunk + static_cast<uint64_t>(chunk));
    }
    if (lane() == 0) of_warps[warp] = hash;
    __syncthreads();
    if (threadIdx.x != 0) return;
    uint64_t sum = 0;
    for (const uint64_t of_warp : of_warps) sum += of_warp;
    partial[blockIdx.x] = sum;
  }
};

}  // namespace

namespace {

template <class Sum>
void add_squares(Sum& sum, const Tensor& x, Stream& stream) {
  const ProfileSpan span("sum_of_squares", [&] { return traffic({&x}); });
  const int64_t n = x.numel(), chunks = (n + chunk_elements - 1) / chunk_elements;
  const Squares squares{x.as<float>(), n, chunks};
  add_terms(sum, TermsToAdd<Squares>{(chunks + sums_of_block - 1) / sums_of_block, squares}, stream);
}

template <class Sum>
void add_products(Sum& sum, const Tensor& x, const Tensor& weights, Stream& stream) {
  const ProfileSpan span("sum_of_products", [&] { return traffic({&x, &weights}); });
  const int64_t n = x.numel();
  LLMTRAIN_CHECK(weights.empty() || weights.numel() == n, "one weight for each element");
  const Products products{x.as<float>(), weights.empty() ? nullptr : weights.as<float>(), n};
  add_terms(sum, TermsToAdd<Products>{(n + Products::threads - 1) / Products::threads, products}, stream);
}

}  // namespace

void sum_of_squares(ExactSum& sum, const Tensor& x, Stream& stream) { add_squares(sum, x, stream); }
void sum_of_squares(const Tensor& sum, const Tensor& x, Stream& stream) { add_squares(sum, x, stream); }

void sum_of_products(ExactSum& sum, const Tensor& x, const Tensor& weights, Stream& stream) {
  add_products(sum, x, weights, stream);
}
void sum_of_products(const Tensor& sum, const Tensor& x, const Tensor& weights, Stream& stream) {
  add_products(sum, x, weights, stream);
}

uint64_t chunked_hash(const Tensor& x, int64_t first_element, Stream& stream) {
  const ProfileSpan span("chunked_hash", [&] { return traffic({&x}); });
  LLMTRAIN_CHECK(first_element % chunk_elements == 0, "a hashed shard starts at a whole chunk");
  const auto chunk_bytes = chunk_elements * static_cast<int64_t>(size_of(x.dtype));
  const int64_t total = x.bytes(), chunks = (total + chunk_bytes - 1) / chunk_bytes;
  const int64_t blocks = std::min(2 * max_blocks, (chunks + HashChunks::warps - 1) / HashChunks::warps);
  std::vector<uint64_t> parts(static_cast<size_t>(blocks));
  const auto bytes = blocks * static_cast<int64_t>(sizeof(uint64_t));
  auto* partial = static_cast<uint64_t*>(scratch(bytes));
  launch({blocks}, stream,
         HashChunks{static_cast<const unsigned char*>(x.data), total, chunk_bytes, chunks,
                    static_cast<uint64_t>(first_element / chunk_elements), partial});
  copy_to_host(parts.data(), partial, bytes, stream);
  stream.synchronize();
  uint64_t hash = 0;
  for (const uint64_t part : parts) hash += part;
  return hash;
}

}  // namespace llmtrain
