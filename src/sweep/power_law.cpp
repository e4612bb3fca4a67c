#include "sweep/power_law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

namespace {

using Coefficients = PowerLaw::Coefficients;
constexpr size_t size = std::tuple_size_v<Coefficients>;
using Matrix = std::array<std::array<double, size>, size>;

constexpr double delta = 1e-3;  // of the Huber loss

/// log L, and its derivatives by the coefficients.
struct Prediction {
  double log_loss;
  Coefficients slope;
};

class Fit {
 public:
  Fit(std::span<const LossPoint> points, const std::array<bool, size>& free) : free_(free) {
    for (const LossPoint& p : points) points_.push_back({std::log(p.parameters), std::log(p.tokens), std::log(p.loss)});
  }

  Prediction predict(const LossPoint& logs, const Coefficients& c) const {
    constexpr double none = -std::numeric_limits<double>::infinity();
    const std::array<double, 3> terms = {
        free_[PowerLaw::alpha] ? c[PowerLaw::log_a] - c[PowerLaw::alpha] * logs.parameters : none,
        free_[PowerLaw::beta] ? c[PowerLaw::log_b] - c[PowerLaw::beta] * logs.tokens : none, c[PowerLaw::log_e]};
    const double most = *std::ranges::max_element(terms);
    std::array<double, 3> shares{};
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) sum += shares[i] = std::exp(terms[i] - most);
    for (double& share : shares) share /= sum;
    return {most + std::log(sum),
            {shares[0], shares[1], shares[2], -shares[0] * logs.parameters, -shares[1] * logs.tokens}};
  }

  double objective(const Coefficients& c) const {
    double sum = 0;
    for (const LossPoint& p : points_) {
      const double r = std::abs(predict(p, c).log_loss - p.loss);
      sum += r <= delta ? r * r / 2 : delta * (r - delta / 2);
    }
    return sum;
  }

  /// Levenberg's and Marquardt's method, in which a point far away has the weight of Huber's loss.
  std::pair<double, Coefficients> minimise(Coefficients c, int steps) const {
    double best = objective(c), damping = 1e-2;
    for (int step = 0; step < steps && damping < 1e12; ++step) {
      Matrix normal{};
      Coefficients gradient{};
      for (const LossPoint& p : points_) {
        const Prediction at = predict(p, c);
        const double r = at.log_loss - p.loss, weight = std::abs(r) <= delta ? 1 : delta / std::abs(r);
        for (size_t i = 0; i < size; ++i) {
          gradient[i] += weight * r * at.slope[i];
          for (size_t j = 0; j < size; ++j) normal[i][j] += weight * at.slope[i] * at.slope[j];
        }
      }
      const Coefficients change = solve(normal, gradient, damping);
      Coefficients tried = c;
      for (size_t i = 0; i < size; ++i) tried[i] -= change[i];
      const double value = objective(tried);
      if (value < best) {
        const bool converged = best - value < 1e-15 * best;
        best = value;
        c = tried;
        damping = std::max(damping / 5, 1e-12);
        if (converged) break;
      } else {
        damping *= 4;
      }
    }
    return {best, c};
  }

  double largest_residual(const Coefficients& c) const {
    double largest = 0;
    for (const LossPoint& p : points_) largest = std::max(largest, std::abs(predict(p, c).log_loss - p.loss));
    return largest;
  }

 private:
  /// Solves (normal + damping diagonal) x = gradient for the free coefficients by Gauss's elimination; others get 0.
  Coefficients solve(Matrix normal, Coefficients x, double damping) const {
    for (size_t i = 0; i < size; ++i) {
      normal[i][i] += damping * (normal[i][i] + 1e-12);
      if (free_[i]) continue;
      normal[i].fill(0);
      normal[i][i] = 1;
      x[i] = 0;
    }
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = i + 1; j < size; ++j) {
        const double factor = normal[j][i] / normal[i][i];
        for (size_t k = i; k < size; ++k) normal[j][k] -= factor * normal[i][k];
        x[j] -= factor * x[i];
      }
    }
    for (size_t i = size; i-- > 0;) {
      for (size_t k = i + 1; k < size; ++k) x[i] -= normal[i][k] * x[k];
      x[i] /= normal[i][i];
    }
    return x;
  }

  std::array<bool, size> free_;
  std::vector<LossPoint> points_;  ///< logarithms
};

/// The best minimum from the starting points of the paper, section D.2.
Coefficients fit_from_grid(const Fit& fit, const std::array<bool, size>& free) {
  std::pair<double, Coefficients> best{std::numeric_limits<double>::infinity(), {}};
  const auto starts = [&](PowerLaw::Coefficient which, double first, double step, int count) {
    std::vector<double> values(static_cast<size_t>(free[which] ? count : 1), first);
    for (size_t i = 1; i < values.size(); ++i) values[i] = first + step * static_cast<double>(i);
    return values;
  };
  for (const double a : starts(PowerLaw::log_a, 0, 5, 6)) {
    for (const double b : starts(PowerLaw::log_b, 0, 5, 6)) {
      for (const double e : starts(PowerLaw::log_e, -1, 0.5, 5)) {
        for (const double x : starts(PowerLaw::alpha, 0, 0.5, 5)) {
          for (const double y : starts(PowerLaw::beta, 0, 0.5, 5)) {
            const auto found = fit.minimise({a, b, e, x, y}, 30);
            if (found.first < best.first) best = found;
          }
        }
      }
    }
  }
  return fit.minimise(best.second, 2000).second;
}

}  // namespace

double PowerLaw::loss(double parameters, double tokens) const {
  double sum = std::exp(values[log_e]);
  if (has_parameters) sum += std::exp(values[log_a] - values[alpha] * std::log(parameters));
  if (has_tokens) sum += std::exp(values[log_b] - values[beta] * std::log(tokens));
  return sum;
}

PowerLaw fit_power_law(std::span<const LossPoint> points) {
  PowerLaw law;
  const auto differs = [&](double LossPoint::*value) {
    return std::ranges::any_of(points, [&](const LossPoint& p) { return p.*value != points.front().*value; });
  };
  for (const LossPoint& p : points) {
    if (p.parameters > 0 && p.tokens > 0 && p.loss > 0 && std::isfinite(p.parameters + p.tokens + p.loss)) continue;
    throw UserError(ExitCode::bad_content, "a power law needs losses, sizes and tokens above 0");
  }
  law.has_parameters = !points.empty() && differs(&LossPoint::parameters);
  law.has_tokens = !points.empty() && differs(&LossPoint::tokens);
  const std::array<bool, size> free = {law.has_parameters, law.has_tokens, true, law.has_parameters, law.has_tokens};
  const size_t needed = static_cast<size_t>(std::ranges::count(free, true)) + 1;
  if (needed == 2 || points.size() < needed) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("a power law needs {}, and there are {} (of finished runs)",
                                needed == 2 ? "points of different sizes or tokens" : fmt::format("{} points", needed),
                                points.size()));
  }
  const Fit fit(points, free);
  law.values = fit_from_grid(fit, free);
  law.largest_residual = fit.largest_residual(law.values);
  // The jackknife: variance (n - 1) / n times the sum of squared deviations (Efron, Stein 1981).
  std::vector<Coefficients> without;
  Coefficients mean{};
  const auto n = static_cast<double>(points.size());
  for (size_t left_out = 0; left_out < points.size(); ++left_out) {
    std::vector<LossPoint> rest(points.begin(), points.end());
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(left_out));
    without.push_back(Fit(rest, free).minimise(law.values, 2000).second);
    for (size_t i = 0; i < size; ++i) mean[i] += without.back()[i] / n;
  }
  for (size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (const Coefficients& c : without) sum += (c[i] - mean[i]) * (c[i] - mean[i]);
    law.errors[i] = std::sqrt((n - 1) / n * sum);
  }
  return law;
}

}  // namespace llmtrain
