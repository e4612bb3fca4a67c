#pragma once
// Attention of one head over a segment of a single block, where a tile is too small to pay for packing its operands:
// everything is fp32 and in the first-level cache, products read rows in place, and elements past the diagonal are not
// computed. attention_short_avx512.cpp compiles this for wider vectors, with instructions that the rest of the program
// must not contain: it calls only templates over V.

#include <cfloat>
#include <cstdint>

#include "kernels/host/attention/attention_panels.hpp"
#include "kernels/host/fast_math.hpp"

namespace llmtrain::host {

inline constexpr int short_group = 8;  ///< queries per group

/// Operands have 64 rows, zero past the segment; `rows` is a multiple of short_group, `channels` of 16.
struct ShortForward {
  float* query;           ///< [64, D]; only rows from `first` on are read, and computed
  float* key;             ///< [64, D], for the caller
  float* key_transposed;  ///< [D, 64]
  float* value;           ///< [64, D]
  float* output;          ///< [64, D]
  float* probabilities;   ///< [short_group, 64]
  float* maximum;         ///< [64], maximum score of a query
  float* sum;             ///< [64], sum of 2^(score - maximum)
  int channels = 0;
  int rows = 0;
  float scale = 0;  ///< factor from products to scores in powers of two
  int first = 0;    ///< a multiple of short_group
};

struct ShortBackward {
  float* query;             ///< [64, D]
  float* key;               ///< [64, D]
  float* key_transposed;    ///< [D, 64]
  float* value;             ///< [64, D], for the caller
  float* value_transposed;  ///< [D, 64]
  float* dout;              ///< [64, D]
  float* dquery;            ///< [64, D], set
  float* dkey;              ///< [64, D], added to
  float* dvalue;            ///< [64, D], added to
  float* probabilities;     ///< [64 queries, 64 keys]
  float* dscores;           ///< [64 queries, 64 keys]
  float* lse;               ///< [64], in powers of two; 0 beyond the segment
  float* delta;             ///< [64], sum(dout * out); 0 beyond the segment
  int channels = 0;
  int rows = 0;
  float scale = 0;  ///< as above
};

template <class V>
class ShortAttention {
 public:
  static void run(const ShortForward& a) {
    for (int first = a.first; first < a.rows; first += short_group) {
      const int keys = first + short_group;
      const Operand query{a.query + first * a.channels, a.channels, 1};
      product<false>(a.probabilities, block, vectors_of(keys), query, a.key_transposed, block, short_group, a.channels);
      float factors[short_group];
      for (int r = 0; r < short_group; ++r) factors[r] = softmax(a, first + r, a.probabilities + r * block);
      float* output = a.output + first * a.channels;
      product<false>(output, a.channels, a.channels / lanes, {a.probabilities, block, 1}, a.value, a.channels,
                     short_group, keys);
      for (int r = 0; r < short_group; ++r) {
        for (float* o = output + r * a.channels; o < output + (r + 1) * a.channels; o += lanes) {
          store_lanes(o, load_lanes<V>(o) * factors[r]);
        }
      }
    }
  }

  static void run(const ShortBackward& a) {
    for (int first = 0; first < a.rows; first += short_group) {
      const int keys = first + short_group;
      const int vectors = vectors_of(keys);
      float* p = a.probabilities + first * block;
      float* ds = a.dscores + first * block;
      const Operand query{a.query + first * a.channels, a.channels, 1};
      const Operand dout{a.dout + first * a.channels, a.channels, 1};
      product<false>(p, block, vectors, query, a.key_transposed, block, short_group, a.channels);
      product<false>(ds, block, vectors, dout, a.value_transposed, block, short_group, a.channels);
      for (int r = 0; r < short_group; ++r) score_gradients(a, first + r, p + r * block, ds + r * block);
      product<false>(a.dquery + first * a.channels, a.channels, a.channels / lanes, {ds, block, 1}, a.key, a.channels,
                     short_group, keys);
    }
    // index of the first key; earlier queries do not see the group
    for (int first = 0; first < a.rows; first += short_group) {
      const int64_t diagonal = int64_t{first} * block + first;
      const int64_t panel = int64_t{first} * a.channels;
      product<true>(a.dkey + panel, a.channels, a.channels / lanes, {a.dscores + diagonal, 1, block}, a.query + panel,
                    a.channels, short_group, a.rows - first);
      product<true>(a.dvalue + panel, a.channels, a.channels / lanes, {a.probabilities + diagonal, 1, block},
                    a.dout + panel, a.channels, short_group, a.rows - first);
    }
  }

 private:
  using Integers = typename BitsOf<V>::Signed;
  static constexpr int block = attention_block;
  static constexpr int lanes = static_cast<int>(lanes_of<V>);
  static constexpr int tile_rows = lanes == 16 ? 8 : 4;  ///< as many as fit the registers

  /// A of a product, element (row, k) at data[row * row_step + k * step].
  struct Operand {
    const float* data;
    int64_t row_step;
    int64_t step;
  };

  /// The last one holds the diagonal of every query of the group before `keys`.
  static int vectors_of(int keys) { return (keys + lanes - 1) / lanes; }

  /// C[tile_rows, columns vectors] = or += A B; B is [count, ...] of stride ldb.
  template <bool add, int columns>
  static void tile(float* c, int64_t ldc, const Operand& a, const float* b, int64_t ldb, int count) {
    V sums[tile_rows][columns] = {};
    if constexpr (add) {
      for (int r = 0; r < tile_rows; ++r) {
        for (int v = 0; v < columns; ++v) sums[r][v] = load_lanes<V>(c + r * ldc + v * lanes);
      }
    }
    for (int k = 0; k < count; ++k) {
      V row[columns];
      for (int v = 0; v < columns; ++v) row[v] = load_lanes<V>(b + k * ldb + v * lanes);
      for (int r = 0; r < tile_rows; ++r) {
        const float x = a.data[r * a.row_step + k * a.step];
        for (int v = 0; v < columns; ++v) sums[r][v] += x * row[v];
      }
    }
    for (int r = 0; r < tile_rows; ++r) {
      for (int v = 0; v < columns; ++v) store_lanes(c + r * ldc + v * lanes, sums[r][v]);
    }
  }

  template <bool add>
  static void product(float* c, int64_t ldc, int vectors, const Operand& a, const float* b, int64_t ldb, int rows,
                      int count) {
    for (int r = 0; r < rows; r += tile_rows) {
      const Operand part{a.data + r * a.row_step, a.row_step, a.step};
      int v = 0;
      for (; v + 2 <= vectors; v += 2) tile<add, 2>(c + r * ldc + v * lanes, ldc, part, b + v * lanes, ldb, count);
      if (v < vectors) tile<add, 1>(c + r * ldc + v * lanes, ldc, part, b + v * lanes, ldb, count);
    }
  }

  /// Visible lanes of the vector that begins at key `first`.
  static Integers visible(int query, int first) {
    Integers key;
    for (int l = 0; l < lanes; ++l) key[l] = l;
    return key <= query - first;
  }

  /// Swaps lanes l and l ^ distance.
  template <int distance>
  static V swapped(V v) {
    constexpr int d = distance;
    if constexpr (lanes == 16) {
      return __builtin_shufflevector(v, v, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d, 8 ^ d, 9 ^ d, 10 ^ d,
                                     11 ^ d, 12 ^ d, 13 ^ d, 14 ^ d, 15 ^ d);
    } else {
      return __builtin_shufflevector(v, v, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d);
    }
  }

  /// Reduction with op over all lanes.
  template <class Op>
  static float fold(V v, const Op& op) {
    if constexpr (lanes == 16) v = op(v, swapped<8>(v));
    v = op(v, swapped<4>(v));
    v = op(v, swapped<2>(v));
    v = op(v, swapped<1>(v));
    return v[0];
  }

  /// Turns scores of a query into 2^(score - maximum), 0 for keys after it. Returns 1 / their sum.
  static float softmax(const ShortForward& a, int query, float* scores) {
    const int last = query / lanes * lanes;
    V best = V{} - FLT_MAX;
    for (int k = 0; k <= last; k += lanes) {
      // The product is rounded before the maximum is subtracted: a fused difference could be far from 0.
      V x = load_lanes<V>(scores + k) * a.scale;
      if (k == last) x = visible(query, k) ? x : V{} - FLT_MAX;
      store_lanes(scores + k, x);
      best = x > best ? x : best;
    }
    const float maximum = fold(best, [](V x, V y) { return x > y ? x : y; });
    V total = {};
    for (int k = 0; k <= last; k += lanes) {
      V p = fast_exp2_capped(load_lanes<V>(scores + k) - maximum);
      if (k == last) p = visible(query, k) ? p : V{};
      store_lanes(scores + k, p);
      total += p;
    }
    const float sum = fold(total, [](V x, V y) { return x + y; });
    a.maximum[query] = maximum;
    a.sum[query] = sum;
    return 1.0f / sum;
  }

  /// p: scores -> probabilities; ds: gradient of the probabilities -> of the scores. Both are 0 for keys after the
  /// query.
  static void score_gradients(const ShortBackward& a, int query, float* p, float* ds) {
    const int last = query / lanes * lanes;
    for (int k = 0; k <= last; k += lanes) {
      V probability = fast_exp2_capped(load_lanes<V>(p + k) * a.scale - a.lse[query]);
      V gradient = load_lanes<V>(ds + k) - a.delta[query];
      if (k == last) {
        const Integers seen = visible(query, k);
        probability = seen ? probability : V{};
        gradient = seen ? gradient : V{};
      }
      store_lanes(p + k, probability);
      store_lanes(ds + k, probability * gradient);
    }
  }
};

/// The same for processors with AVX-512.
void short_attention_avx512(const ShortForward& a);
void short_attention_avx512(const ShortBackward& a);

/// Selects the vectors of this processor.
void short_attention(const ShortForward& a);
void short_attention(const ShortBackward& a);

}  // namespace llmtrain::host
