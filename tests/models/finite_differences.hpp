#pragma once
// Gradients of whole models beside finite differences of their losses.

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace llmtrain::test {

using Parameters = std::map<std::string, std::vector<float>>;

/// Maximum over tensors of the error of the slope of `loss` at `point` in random directions, over the norm of the
/// tensor's gradient, for gradients that are `factor` times as long.
inline double largest_slope_error(const Parameters& point, const Parameters& gradients, double factor,
                                  const std::function<double(const Parameters&)>& loss) {
  std::mt19937_64 generator(9);
  std::normal_distribution<float> normal;
  double largest = 0;
  for (const auto& [name, gradient] : gradients) {
    std::vector<float> direction(gradient.size());
    for (float& value : direction) value = normal(generator);
    double ours = 0, square = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      ours += factor * double{gradient[i]} * double{direction[i]};
      square += double{gradient[i]} * double{gradient[i]};
    }
    const auto at = [&](double step) {
      Parameters moved = point;
      for (size_t i = 0; i < direction.size(); ++i) moved[name][i] += static_cast<float>(step * direction[i]);
      return loss(moved);
    };
    constexpr double h = 5e-3;
    const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    largest = std::max(largest, std::abs(slope - ours) / std::sqrt(square));
  }
  return largest;
}

}  // namespace llmtrain::test
