#pragma once
// Mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538): the choice of experts for each row, and what moves rows
// to experts and back. No row is dropped. A pair is a row n with one of its k chosen experts, number n k + slot; the
// slots of a row are its experts in ascending order.

#include <cstdint>
#include <span>

#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/routing.hpp"

namespace llmtrain {

/// Integers that a layer of experts adds to the statistics of a pass: for each expert its pairs, then for each the sum
/// of scores, then the sum of squared log_sum, both in units of router_unit. Their order does not matter to a bit.
constexpr int64_t router_statistics(int64_t experts) { return 2 * experts + 1; }
inline constexpr double router_unit = 1.0 / (int64_t{1} << 24);  ///< see routing::in_units()

/// Scores, choices and weights of rows.
struct Routing {
  Tensor scores;   ///< fp32 [N, E]: logits on entry
  Tensor log_sum;  ///< fp32 [N], log(sum(exp(logits)))
  Tensor choices;  ///< int32 [N, k]
  Tensor weights;  ///< fp32 [N, k]
};
/// bias: fp32 [E], added to the scores for the choice alone; empty: none. Adds the first `counted` rows to
/// `statistics`, int64 [router_statistics(E)], unless it is empty.
void route(const Routing& routing, const RoutingRule& rule, const Tensor& bias, const Tensor& statistics,
           int64_t counted, Stream& stream);

/// Gradient of the logits.
struct RoutingBackward {
  Tensor dlogits;  ///< fp32 [N, E]
  Tensor scores;
  Tensor log_sum;
  Tensor choices;
  Tensor dweights;        ///< fp32 [N, k]
  Tensor balance;         ///< fp32 [E], derivative of the loss by each score of the counted rows; empty: 0
  double log_sum_square;  ///< derivative of the loss by the square of log_sum, of these rows
  int64_t counted;
};
void route_backward(const RoutingBackward& args, const RoutingRule& rule, Stream& stream);

/// Sorts pairs by expert, and the pairs of an expert by row: order, int32 [N k], has their numbers. ends, int64
/// [blocks E], has for block b and expert e the end in `order` of the pairs of e whose rows lie before block_ends[b],
/// the last of which is N. choices: int32 [N, k]. A device waits for the host, which sorts.
void sort_pairs(const Tensor& order, const Tensor& ends, const Tensor& choices, std::span<const int64_t> block_ends,
                Stream& stream);

// An empty order below is that of all rows with k = 1.

/// y [P, C] = rows order[i] / k of x [N, C]; one dtype.
void gather_pairs(const Tensor& y, const Tensor& x, const Tensor& order, int64_t k, Stream& stream);

/// The inverse: rows order[i] of y [N k, C] = x [P, C]; fp32.
void scatter_pairs(const Tensor& y, const Tensor& x, const Tensor& order, Stream& stream);

/// sum [N, C] += rows of x [P, C], at the rows of the pairs, which differ; both fp32.
void add_pairs(const Tensor& sum, const Tensor& x, const Tensor& order, int64_t k, Stream& stream);

/// y [P, F] = x times the weights of the pairs, fp32 [N, k]; x and y have one dtype.
void scale_pairs(const Tensor& y, const Tensor& x, const Tensor& weights, const Tensor& order, Stream& stream);

/// dweights of the pairs = sums of dy x over F; then dy times the weights, in place. dy and x [P, F] have one dtype.
void scale_pairs_backward(const Tensor& dweights, const Tensor& dy, const Tensor& x, const Tensor& weights,
                          const Tensor& order, Stream& stream);

/// x [P, C] += the weights of the pairs times a bias [C], by rows; x is fp32, the bias of any dtype.
void add_pair_biases(const Tensor& x, const Tensor& bias, const Tensor& weights, const Tensor& order, Stream& stream);

/// dweights of the pairs += sums of dy bias over C; dy [P, C].
void pair_bias_backward_weights(const Tensor& dweights, const Tensor& dy, const Tensor& bias, const Tensor& order,
                                Stream& stream);

/// dbias [C], fp32, = or += the sum over pairs of their weights times dy [P, C], in the order of column sums.
void pair_bias_backward(const Tensor& dbias, const Tensor& dy, const Tensor& weights, const Tensor& order,
                        bool accumulate, Stream& stream);

/// y [N] = 1 / (1 + exp(-x)), fp32.
void sigmoid(const Tensor& y, const Tensor& x, Stream& stream);
/// dx = dy y (1 - y), fp32 [N].
void sigmoid_backward(const Tensor& dx, const Tensor& dy, const Tensor& y, Stream& stream);

}  // namespace llmtrain
