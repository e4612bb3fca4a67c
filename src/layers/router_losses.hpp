#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/exact_sum.hpp"
#include "device/device.hpp"
#include "kernels/experts.hpp"

namespace llmtrain {

class Communicator;
class SharedRows;

/// Coefficients of losses of routers ([objective]), of which each is a mean over all layers with experts and all rows
/// that are not padding.
struct RouterLossCoefficients {
  double balance = 0;  ///< of E sum over experts of (share of pairs) x (mean score) (Fedus et al. 2021, eq. 4; k = 1)
  double z = 0;        ///< of the squared log_sum (Zoph et al. 2022, arXiv:2202.08906, eq. 5)
};

/// Losses and load of the routers of a model in training. All statistics are integers, so that their sums depend
/// neither on an order nor on the ranks that share a micro-batch.
///
///   begin_step(); for each micro-batch: begin_pass(), forward, end_pass(), backward; sum(); values
class RouterLosses {
 public:
  /// `layers`: numbers in the model of the layers with experts.
  RouterLosses(RouterLossCoefficients coefficients, int64_t experts, std::vector<int64_t> layers)
      : coefficients_(coefficients), experts_(experts), layers_(std::move(layers)) {}
  void set_coefficients(RouterLossCoefficients coefficients) { coefficients_ = coefficients; }
  void plan(Arena& arena);

  /// `weight`: factor of a micro-batch's mean in the step's sums of losses. `scale`: factor of derivatives alone.
  /// `sign`: 1 or -1, factor of loss() alone, for objectives that sum log-probabilities.
  void begin_step(double weight, double scale, double sign = 1);
  void begin_pass(Stream& stream);
  /// The statistics of a layer, to which it adds its rows, int64 [router_statistics(E)].
  Tensor statistics(int64_t layer) const { return statistics_.rows(layer, 1).reshaped({router_statistics(experts_)}); }
  /// The forward pass of `rows` rows without padding is done; other ranks may have further rows of the micro-batch. The
  /// host waits for a device. `counts`: the micro-batch joins the values of the step.
  void end_pass(int64_t rows, SharedRows* shared, Stream& stream, bool counts = true);

  // For the backward pass of this micro-batch.
  /// Derivative by each score, fp32 [E]; empty: 0.
  Tensor balance_slope() const { return coefficients_.balance == 0 ? Tensor() : slope_; }
  /// Derivative by each squared log_sum.
  double log_sum_square_slope() const { return log_sum_square_slope_; }

  /// The step's sum of losses times their coefficients and the sign, of the micro-batches that this rank leads.
  const ExactSum& loss() const { return loss_; }
  struct LayerLoad {
    int64_t layer;              ///< number in the model
    double load_max, load_min;  ///< largest and smallest load of an expert, over the mean load
  };
  struct Values {
    double load_max, load_min;  ///< of all layers
    double entropy;             ///< mean over layers of the entropy of the load, 1 if all experts have as many pairs
    double balance, z;          ///< losses without coefficients: means over micro-batches
    std::vector<LayerLoad> layers;
  };
  /// Values of the step, on every rank. Collective over the job.
  Values sum(Communicator& job);
  /// Number of times that the step chose each expert, [layers, E], of all ranks after sum().
  std::span<const int64_t> pairs() const { return pairs_; }

 private:
  RouterLossCoefficients coefficients_;
  int64_t experts_;
  std::vector<int64_t> layers_;
  Tensor statistics_;  ///< int64 [layers, router_statistics(E)]
  Tensor slope_;       ///< fp32 [E]
  double weight_ = 0, scale_ = 1, sign_ = 1, log_sum_square_slope_ = 0;
  std::vector<int64_t> fetched_;  ///< statistics_ of all ranks that share the micro-batch
  std::vector<double> totals_;    ///< over layers; statistics of routers that diverge exceed int64
  std::vector<float> slopes_;     ///< slope_ on the host
  std::vector<int64_t> pairs_;    ///< [layers, E], of the step
  ExactSum loss_, balance_, z_;
  int64_t passes_ = 0;
};

}  // namespace llmtrain
