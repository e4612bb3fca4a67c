#pragma once
// Products of small matrices by a warp on tensor cores (PTX ISA, "mma.m16n8k16", "ldmatrix"), bf16 or fp16 inputs, fp32
// accumulation. With g = lane / 4 and t = lane % 4 a lane holds
//   of A [16, 16]: rows g and g + 8, columns 2 t, 2 t + 1 and 8 more:
//                  registers (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
//   of B [16, 8]:  column g, rows 2 t, 2 t + 1 and 8 more
//   of C [16, 8]:  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)

#include "kernels/cuda/attention_shape.hpp"
#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

/// Two elements of type H, bf16 or f16, the lower one first.
using Pair = uint32_t;

#if defined(__CUDACC__)

template <class H>
__device__ Pair pair_of(float low, float high) {
  Pair pair;
  if constexpr (dtype_of<H> == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));  // the first operand is the upper half
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// c += a b
template <class H>
__device__ void multiply_add(float (&c)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  if constexpr (dtype_of<H> == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Loads four 8 x 8 matrices from shared memory: lane l names row l % 8 of matrix l / 8, 8 elements aligned to 16
/// bytes. A lane receives elements (g, 2 t) and (g, 2 t + 1) of each; transposed: (2 t, g) and (2 t + 1, g).
template <bool transposed, class H>
__device__ void load_matrices(Pair (&m)[4], const H* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
  }
}

#else

template <class H>
Pair pair_of(float low, float high) {
  return uint32_t{H(low).bits} | (uint32_t{H(high).bits} << 16);
}

template <class H>
float element_of(Pair pair, int which) {
  H half;
  half.bits = static_cast<uint16_t>(pair >> (16 * which));
  return static_cast<float>(half);
}

template <class H>
void multiply_add(float (&c)[4], const Pair (&a)[4], const Pair (&b)[2]) {
  Pair mine[6];
  std::copy(a, a + 4, mine);
  std::copy(b, b + 2, mine + 4);
  const emulator::Exchanged& all = emulator::exchange(mine, sizeof mine);
  const auto of = [&](int lane, int r) {
    Pair p;
    std::memcpy(&p, all[static_cast<size_t>(lane)].data() + sizeof(Pair) * static_cast<size_t>(r), sizeof p);
    return p;
  };
  const int g = lane() / 4, t = lane() % 4;
  LLMTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Pair x = of(row % 8 * 4 + k % 8 / 2, row / 8 + 2 * (k / 8)), y = of(column * 4 + k % 8 / 2, 4 + k / 8);
      c[i] += element_of<H>(x, k % 2) * element_of<H>(y, k % 2);
    }
  }
}

template <bool transposed, class H>
void load_matrices(Pair (&m)[4], const H* row) {
  LLMTRAIN_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "ldmatrix: a row is not aligned");
  const emulator::Exchanged& all = emulator::exchange(&row, sizeof row);
  const auto element = [&](int matrix, int r, int c) -> uint32_t {
    const H* from = nullptr;
    std::memcpy(&from, all[static_cast<size_t>(8 * matrix + r)].data(), sizeof from);
    return from[c].bits;
  };
  const int g = lane() / 4, t = lane() % 4;
  LLMTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) {
    m[i] = transposed ? element(i, 2 * t, g) | (element(i, 2 * t + 1, g) << 16)
                      : element(i, g, 2 * t) | (element(i, g, 2 * t + 1) << 16);
  }
}

#endif

/// A matrix in shared memory.
template <int columns, class H>
struct Tile {
  static constexpr int stride = tile_stride(columns);
  H* data;
  __device__ H* row(int r) const { return data + r * stride; }

  /// Loads rows [r0, r0 + 16) and columns [c0, c0 + 16) as A.
  __device__ void a(Pair (&m)[4], int r0, int c0) const {
    load_matrices<false>(m, row(r0 + lane() % 16) + c0 + lane() / 16 * 8);
  }
  /// Loads the transposed matrix as A: rows are columns r0 .. r0 + 15 here, columns are rows c0 .. c0 + 15.
  __device__ void a_transposed(Pair (&m)[4], int r0, int c0) const {
    load_matrices<true>(m, row(c0 + lane() % 8 + lane() / 16 * 8) + r0 + lane() / 8 % 2 * 8);
  }
  /// Loads the transposed matrix as B: columns are rows n0 .. n0 + 15 here (two B's), rows are columns k0 .. k0 + 15.
  __device__ void b_transposed(Pair (&m)[4], int n0, int k0) const {
    load_matrices<false>(m, row(n0 + lane() % 8 + lane() / 16 * 8) + k0 + lane() / 8 % 2 * 8);
  }
  /// Loads rows k0 .. k0 + 15 and columns n0 .. n0 + 15 as two B's.
  __device__ void b(Pair (&m)[4], int k0, int n0) const {
    load_matrices<true>(m, row(k0 + lane() % 16) + n0 + lane() / 16 * 8);
  }
};

/// c [16, 8 tiles] += a [16, 16] (two B's at a time: b gives columns [16 i, 16 i + 16)).
template <class H, int tiles, class B>
__device__ void multiply_row(float (&c)[tiles][4], const Pair (&a)[4], const B& b) {
  static_assert(tiles % 2 == 0);
  LLMTRAIN_UNROLL
  for (int i = 0; i < tiles / 2; ++i) {
    Pair m[4];
    b(m, 16 * i);
    const Pair low[2] = {m[0], m[1]}, high[2] = {m[2], m[3]};
    multiply_add<H>(c[2 * i], a, low);
    multiply_add<H>(c[2 * i + 1], a, high);
  }
}

/// Converts c [16, 8 tiles], rounded, to A's of its columns [16 i, 16 i + 16).
template <class H, int tiles>
__device__ void as_operand(Pair (&a)[4], const float (&c)[tiles][4], int i) {
  a[0] = pair_of<H>(c[2 * i][0], c[2 * i][1]);
  a[1] = pair_of<H>(c[2 * i][2], c[2 * i][3]);
  a[2] = pair_of<H>(c[2 * i + 1][0], c[2 * i + 1][1]);
  a[3] = pair_of<H>(c[2 * i + 1][2], c[2 * i + 1][3]);
}

}  // namespace llmtrain::cuda
