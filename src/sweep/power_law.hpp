#pragma once
#include <array>
#include <span>

namespace llmtrain {

/// The loss of a model with N parameters after D tokens.
struct LossPoint {
  double parameters = 0;  ///< N
  double tokens = 0;      ///< D
  double loss = 0;        ///< nats per token
};

/// L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv:2203.15556, equation 2).
struct PowerLaw {
  enum Coefficient : size_t { log_a, log_b, log_e, alpha, beta };
  using Coefficients = std::array<double, 5>;

  Coefficients values{};
  Coefficients errors{};        ///< standard errors, by leaving out one point at a time (the jackknife)
  bool has_parameters = true;   ///< false: all points have one N, and E contains A / N^alpha
  bool has_tokens = true;       ///< false: all points have one D, and E contains B / D^beta
  double largest_residual = 0;  ///< of log L

  double loss(double parameters, double tokens) const;
};

/// Minimises the Huber loss (delta 1e-3) of the differences of log L, as equation 3 there, from its grid of starting
/// points. Throws UserError(bad_content) if there are fewer points than coefficients and one, or one that is not
/// positive and finite.
PowerLaw fit_power_law(std::span<const LossPoint> points);

}  // namespace llmtrain
