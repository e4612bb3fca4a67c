#pragma once
// A block of rows of logits, and its statistics and gradients by the kernels and in double.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention_reference.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain::test {

using Values = std::vector<double>;

/// A block of rows: logits with padding columns full of large values, some rows without target.
struct Rows {
  int64_t rows, vocabulary, columns;
  Values logits, dlogp, dlse, dentropy, duniform, dsquared;
  std::vector<int32_t> targets;

  Rows(int64_t r, int64_t v, int64_t padded, double magnitude = 3, unsigned seed = 1)
      : rows(r), vocabulary(v), columns(padded), logits(random_values(r * padded, magnitude, DType::f32, seed)) {
    dlogp = random_values(r, 1, DType::f32, seed + 1);
    dlse = random_values(r, 1, DType::f32, seed + 2);
    dentropy = random_values(r, 1, DType::f32, seed + 3);
    duniform = random_values(r, 1, DType::f32, seed + 4);
    dsquared = random_values(r, 0.1, DType::f32, seed + 5);
    for (int64_t i = 0; i < r; ++i) {
      targets.push_back(i % 5 == 3 ? ignore_target : static_cast<int32_t>((i * 7919) % v));
      for (int64_t c = v; c < padded; ++c) logits[static_cast<size_t>(i * padded + c)] = 1e30;
    }
  }
};

struct Naive {
  Values logp, lse, entropy, uniform, argmax, dlogits;
  double objective = 0;  ///< sum of statistics times cotangents

  explicit Naive(const Rows& x) : dlogits(x.logits.size(), 0.0) {
    for (int64_t r = 0; r < x.rows; ++r) {
      const double* z = &x.logits[static_cast<size_t>(r * x.columns)];
      double* d = &dlogits[static_cast<size_t>(r * x.columns)];
      const auto row = static_cast<size_t>(r);
      const int64_t v = x.vocabulary;
      const double highest = *std::max_element(z, z + v);
      double sum = 0;
      for (int64_t c = 0; c < v; ++c) sum += std::exp(z[c] - highest);
      lse.push_back(highest + std::log(sum));
      double h = 0;
      for (int64_t c = 0; c < v; ++c) h -= std::exp(z[c] - lse.back()) * (z[c] - lse.back());
      entropy.push_back(h);
      double logits_sum = 0;
      for (int64_t c = 0; c < v; ++c) logits_sum += z[c];
      uniform.push_back(lse.back() - logits_sum / static_cast<double>(v));
      argmax.push_back(static_cast<double>(std::max_element(z, z + v) - z));
      const bool trained = x.targets[row] != ignore_target;
      logp.push_back(trained ? z[x.targets[row]] - lse.back() : 0);
      for (int64_t c = 0; c < v; ++c) {
        const double log_p = z[c] - lse.back();
        const double p = std::exp(log_p);
        d[c] = (x.dlse[row] + 2 * lse.back() * x.dsquared[row]) * p - x.dentropy[row] * p * (log_p + h);
        d[c] += x.duniform[row] * (p - 1 / static_cast<double>(v));
        if (trained) d[c] += x.dlogp[row] * ((c == x.targets[row] ? 1 : 0) - p);
      }
      objective += x.dlogp[row] * logp.back() + x.dlse[row] * lse.back() + x.dentropy[row] * h +
                   x.duniform[row] * uniform.back() + x.dsquared[row] * lse.back() * lse.back();
    }
  }
};

/// The statistics and tensors of one run of the kernels.
struct Kernel {
  DeviceTensor logits, targets, logp, lse, entropy, uniform, argmax, dlogp, dlse, dentropy, duniform, dsquared;

  explicit Kernel(const Rows& x)
      : logits(DType::f32, {x.rows, x.columns}),
        targets(DType::i32, {x.rows}),
        logp(DType::f32, {x.rows}),
        lse(DType::f32, {x.rows}),
        entropy(DType::f32, {x.rows}),
        uniform(DType::f32, {x.rows}),
        argmax(DType::i32, {x.rows}),
        dlogp(DType::f32, {x.rows}),
        dlse(DType::f32, {x.rows}),
        dentropy(DType::f32, {x.rows}),
        duniform(DType::f32, {x.rows}),
        dsquared(DType::f32, {x.rows}) {
    logits.set(x.logits);
    targets.set(x.targets.data());
    dlogp.set(x.dlogp);
    dlse.set(x.dlse);
    dentropy.set(x.dentropy);
    duniform.set(x.duniform);
    dsquared.set(x.dsquared);
  }
  TokenStatistics statistics() const {
    return {logp.tensor, lse.tensor, entropy.tensor, argmax.tensor, {}, uniform.tensor};
  }
  TokenCotangents cotangents() const {
    return {dlogp.tensor, dlse.tensor, dentropy.tensor, {}, duniform.tensor, dsquared.tensor};
  }
  std::vector<int32_t> argmax_values() const {
    std::vector<int32_t> v(static_cast<size_t>(argmax.tensor.numel()));
    copy_to_host(v.data(), argmax.tensor.data, argmax.tensor.bytes(), stream());
    stream().synchronize();
    return v;
  }
  void forward(int64_t vocabulary) {
    logprob_forward(statistics(), logits.tensor, targets.tensor, vocabulary, stream());
  }
  void backward(const Tensor& dlogits, const TokenCotangents& c, int64_t vocabulary, float softcap = 0) {
    logprob_backward(dlogits, logits.tensor, targets.tensor, statistics(), c, vocabulary, softcap, stream());
  }
};

inline const Rows& shape(int index) {
  static const Rows all[] = {Rows(7, 50, 64),        Rows(1, 1, 1),           Rows(9, 257, 257),
                             Rows(5, 50257, 50304),  Rows(3, 262144, 262144), Rows(6, 4097, 4224),
                             Rows(8, 1000, 1024, 40)};
  return all[index];
}

}  // namespace llmtrain::test
