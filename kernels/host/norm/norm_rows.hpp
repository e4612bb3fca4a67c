#pragma once
// Rows of a norm's forward pass. norm_rows_avx512.cpp compiles this for wider vectors, with instructions that the rest
// of the program must not contain: it calls only templates over V.

#include "core/dtype.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain::host {

struct NormForwardRows {
  bool centered;
  bool again;  ///< mean and rstd are given
  int64_t rows;
  int64_t channels;
  const float* x;  ///< [rows, channels]
  void* y;         ///< [rows, channels]
  DType y_type;
  float* mean;  ///< [rows], where centered
  float* rstd;  ///< [rows], if centered
  const void* weight;
  const void* bias;  ///< or null
  DType weight_type;
  float weight_offset;
  float epsilon;
};

/// Sums have the order of lanes.hpp for every V.
template <class V>
class NormRows {
 public:
  static void forward(const NormForwardRows& a) {
    if (a.y_type == DType::f32) return with_weight<float>(a);
    a.y_type == DType::bf16 ? with_weight<bf16>(a) : with_weight<f16>(a);
  }

 private:
  static constexpr int lanes = static_cast<int>(lanes_of<V>);
  static constexpr int parts = static_cast<int>(lane_count) / lanes;

  template <class Y>
  static void with_weight(const NormForwardRows& a) {
    if (a.weight_type == DType::f32) return rows<Y, float>(a);
    a.weight_type == DType::bf16 ? rows<Y, bf16>(a) : rows<Y, f16>(a);
  }

  template <class Y, class W>
  static void rows(const NormForwardRows& a) {
    if (!a.again) {  // all rows first, so that their chains of sums run in parallel
      for (int64_t r = 0; r < a.rows; ++r) statistics(a, a.x + r * a.channels, r);
    }
    for (int64_t r = 0; r < a.rows; ++r) {
      normalize(static_cast<Y*>(a.y) + r * a.channels, a.x + r * a.channels, static_cast<const W*>(a.weight),
                static_cast<const W*>(a.bias), a.centered ? a.mean[r] : 0.0f, a.rstd[r], a);
    }
  }

  static void statistics(const NormForwardRows& a, const float* x, int64_t row) {
    const auto n = static_cast<double>(a.channels);
    float mean = 0;
    if (a.centered) {
      mean =
          static_cast<float>(sum(a.channels, [x](int64_t i, int64_t rest) { return load_up_to<V>(x + i, rest); }) / n);
      a.mean[row] = mean;
    }
    const double squares = sum(a.channels, [x, mean](int64_t i, int64_t rest) {
      const V d = (rest >= lanes ? load_lanes<V>(x + i) : load_lanes<V>(x + i, rest, mean)) - mean;
      return d * d;
    });
    a.rstd[row] = static_cast<float>(1.0 / __builtin_sqrt(squares / n + double{a.epsilon}));
  }

  /// term(i, rest): elements from i on, of which `rest` exist.
  template <class Term>
  static double sum(int64_t count, const Term& term) {
    V sums[parts] = {};
    int64_t i = 0;
    for (; i + lane_count <= count; i += lane_count) {
      for (int p = 0; p < parts; ++p) sums[p] += term(i + p * lanes, lanes);
    }
    for (int p = 0; p < parts; ++p) {
      const int64_t first = i + p * lanes;
      if (first < count) sums[p] += term(first, count - first);
    }
    float s[lane_count];
    for (int p = 0; p < parts; ++p) store_lanes(s + p * lanes, sums[p]);
    for (int l = 0; l < 8; ++l) s[l] += s[l + 8];
    return ((double{s[0]} + double{s[4]}) + (double{s[2]} + double{s[6]})) +
           ((double{s[1]} + double{s[5]}) + (double{s[3]} + double{s[7]}));
  }

  template <class Y, class W>
  static void normalize(Y* y, const float* x, const W* weight, const W* bias, float mean, float rstd,
                        const NormForwardRows& a) {
    for (int64_t c = 0; c < a.channels; c += lanes) {
      const int64_t rest = a.channels - c;
      V value = (load_up_to<V>(x + c, rest) - mean) * rstd;
      const V factor = a.weight_offset + load_up_to<V>(weight + c, rest);
      value = bias == nullptr ? value * factor : fused(value, factor, load_up_to<V>(bias + c, rest));
      store_up_to(y + c, value, rest);
    }
  }
};

/// NormRows<Float16>::forward, for processors with AVX-512.
void norm_rows_avx512(const NormForwardRows& rows);

}  // namespace llmtrain::host
