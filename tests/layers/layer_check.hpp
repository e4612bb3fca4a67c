#pragma once
// Gradients of whole layers compared with finite differences of their own forward pass, in fp32: a check that every
// layer passes, with controls that must fail.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/context.hpp"
#include "layers/rope.hpp"

namespace llmtrain::test {

/// A layer as a function of x and its parameters. All tensors are fp32.
struct LayerCase {
  std::vector<int> documents;                        ///< lengths; N is their sum
  int64_t x_columns = 0, y_rows = 0, y_columns = 0;  ///< x [N, x_columns], none with 0; y [y_rows, y_columns]
  std::function<void(UnitBuilder&)> declare = {};
  std::function<int64_t(Arena&, int64_t rows)> plan = {};  ///< registers what the layer keeps; returns bytes of scratch
  std::function<void(Context&, const Batch&, const Tensor& y, const Tensor& x)> forward = {};
  std::function<void(Context&, const Batch&, const Tensor& dx, const Tensor& dy, const Tensor& x)> backward = {};
  double parameter_scale = 0.5;  ///< standard deviation; parameters of `around_one` are moved by 1
  std::vector<std::string> around_one = {};
  int64_t vocabulary = 11;  ///< of ids and targets
};

/// Errors of one tensor: |slope by differences - slope by the backward pass| along random directions over the
/// gradient's L2 norm, which is the size of such a slope; the maximum.
struct LayerErrors {
  std::map<std::string, double> errors;    ///< "x" and the parameters' names
  std::map<std::string, double> too_long;  ///< control: the same if the gradient were 1 % longer
  double largest() const;
};

/// Slopes by fourth-order differences. Rounding of the forward pass gives errors up to 1e-4.
LayerErrors check_gradients(const LayerCase& layer);

/// Bound for correct layers, which the controls exceed.
inline constexpr double gradient_bound = 5e-4;

/// Expects all errors below the bound, and every control above.
void expect_right_gradients(const LayerCase& layer);
/// Control: expects that an error is far above the bound.
void expect_wrong_gradients(const LayerCase& layer);

/// y of a forward pass in training, with the random numbers of a step of a run with this seed.
std::vector<float> output_at(const LayerCase& layer, uint64_t seed, int64_t step);

/// A rotation of heads of `width` elements for the layer under test, prepared for its rows.
Rope rope_for(int64_t width);

}  // namespace llmtrain::test
