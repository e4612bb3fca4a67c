// Muon (Jordan et al. 2024), in the order of operations of torch.optim.Muon: a hidden matrix follows an average of its
// gradients, whose singular values five Newton-Schulz iterations bring near 1, in bf16. All else is updated as by
// adamw.
//
// A matrix is a Hugging Face tensor, also inside a fused matrix. One rank iterates it: the matrices are taken by
// descending work, as many at a time as there are ranks. Each is gathered from its shards, iterated, and sent to all.

#include "kernels/muon.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/adamw.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/reduce.hpp"
#include "kernels/workspace.hpp"
#include "optim/element_optimizer.hpp"

namespace llmtrain {

namespace {

constexpr int iterations = 5;
constexpr int64_t piece_elements = int64_t{1} << 18;  ///< of offloaded state, at once

enum Plane : size_t { master, momentum, second_moment };
int64_t second_moments(const ParamSpec& param, const ParamSlice& /*slice*/) {
  return param.hidden ? 0 : chunk_elements;
}

/// A tensor that is orthogonalised.
struct Matrix {
  int unit;
  int64_t first;          ///< element of the unit
  int64_t rows, columns;  ///< as stored: [out, in]
  bool transposed;        ///< for torch it is [columns, rows]
  double lr_scale;

  int64_t elements() const { return rows * columns; }
  int64_t last() const { return first + elements(); }
  /// True if torch iterates the transposed matrix: the products of a side are those of the shorter one.
  bool tall() const { return transposed ? rows >= columns : rows > columns; }
  int64_t side() const { return std::min(rows, columns); }
  double work() const {
    const int64_t long_side = elements() / side();
    return static_cast<double>(side()) * static_cast<double>(side() * (side() + 2 * long_side));
  }
};

std::vector<Matrix> hidden_matrices(const ParamStore& params) {
  std::vector<Matrix> matrices;
  for_each_slice(params.units(), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    if (!params.units()[at.unit].trained() || !param.hidden || slice.fixed) return;
    const int64_t first = params.units()[at.unit].layout.offset(at.param, at.slice);
    matrices.push_back({at.unit, first, slice.rows, param.columns, slice.transposed, param.lr_scale});
  });
  std::ranges::stable_sort(matrices, std::greater<>(), &Matrix::work);
  return matrices;
}

class Muon : public ElementOptimizer {
 public:
  explicit Muon(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return {{"master"}, {"m"}, {"v", DType::f32, 0, second_moments}}; }

  void plan(const ParamStore& params, Arena& arena) override {
    matrices_ = hidden_matrices(params);
    int64_t elements = 0, square = 0;
    for (const Matrix& matrix : matrices_) {
      elements = std::max(elements, matrix.elements());
      square = std::max(square, matrix.side() * matrix.side());
      const int64_t side = matrix.side(), length = matrix.elements() / side;
      for (const auto& [in, out] : {std::pair(length, side), std::pair(side, side), std::pair(side, length)}) {
        const LinearPass pass{in, out, false, DType::bf16, DType::f32, true, true};
        arena.reserve_workspace(linear_workspace_bytes(pass, std::max(matrix.rows, side)));
      }
    }
    if (matrices_.empty()) return;
    const auto add = [&](Tensor& t, const char* name, DType dtype, int64_t count) {
      arena.add(t, MemoryCategory::optimizer, name, dtype, {count});
    };
    add(own_, "orthogonalised matrix", DType::bf16, elements);
    if (params.units().options().size > 1) add(others_, "matrix in transit", DType::bf16, elements);
    add(square_, "square of a matrix", DType::bf16, square);
    add(product_, "product of matrices", DType::f32, std::max(elements, square));
    if (params.offload().has(master) || params.offload().has(momentum)) {
      add(piece_, "piece of a matrix's state", DType::f32, std::min(elements, piece_elements));
    }
  }

 private:
  void before_pass(ParamStore& params) override {
    params_ = &params;
    const std::optional<double> factor = matrices_.empty() ? std::nullopt : gradient_factor(args(), stream());
    if (!factor) return;
    LLMTRAIN_CHECK(args().ranks != nullptr && !own_.empty(), "muon needs the communicator and its planned memory");
    params.begin_change();
    const auto ranks = static_cast<size_t>(params.units().options().size);
    for (size_t first = 0; first < matrices_.size(); first += ranks) {
      const size_t last = std::min(first + ranks, matrices_.size());
      for (size_t i = first; i < last; ++i) gather(matrices_[i], static_cast<int>(i - first), *factor);
      const size_t mine = first + static_cast<size_t>(rank());
      if (mine < last) orthogonalize(matrices_[mine]);
      for (size_t i = first; i < last; ++i) distribute(matrices_[i], static_cast<int>(i - first));
    }
  }

  int rank() const { return args().ranks->rank(); }
  Tensor room(const Matrix& matrix, int for_rank) const {
    return (for_rank == rank() ? own_ : others_).rows(0, matrix.elements());
  }

  /// Updates the averages that this rank holds, and gathers what follows from them.
  void gather(const Matrix& matrix, int to, double scale) {
    const Tensor whole = room(matrix, to);
    const MuonMomentum step{config_.momentum, config_.nesterov, scale};
    each_part(matrix, momentum, [&](int64_t begin, const Tensor& average, const Tensor& gradient) {
      muon_momentum(whole.rows(begin - matrix.first, average.numel()), average, gradient, step, stream());
    });
    const int ranks = params_->units().options().size;
    if (ranks == 1) return;
    const std::vector<int64_t>& segments = params_->units()[matrix.unit].layout.segments();
    const std::vector<int64_t> all = params_->units()[matrix.unit].layout.borders(ranks);
    std::vector<int64_t> borders;
    for (size_t s = 0; s + 1 < segments.size(); ++s) {
      if (segments[s + 1] <= matrix.first || segments[s] >= matrix.last()) continue;
      const auto from = all.begin() + static_cast<ptrdiff_t>(s) * ranks;
      if (!borders.empty()) borders.pop_back();
      std::transform(from, from + ranks + 1, std::back_inserter(borders),
                     [&](int64_t border) { return std::clamp(border, matrix.first, matrix.last()) - matrix.first; });
    }
    args().ranks->all_gather(whole, borders, stream()).finish(stream());
  }

  /// Newton-Schulz iterations of the matrix in own_.
  void orthogonalize(const Matrix& matrix) {
    const Tensor flat = own_.rows(0, matrix.elements()), x = flat.reshaped({matrix.rows, matrix.columns});
    const int64_t side = matrix.side();
    const Tensor square = square_.rows(0, side * side).reshaped({side, side});
    const Tensor of_squares = product_.rows(0, side * side), product = product_.rows(0, matrix.elements());
    const Tensor squared = of_squares.reshaped({side, side}), like_x = product.reshaped({matrix.rows, matrix.columns});
    cast(product, flat, stream());
    ExactSum sum;
    sum_of_squares(sum, product, stream());
    const bf16 norm(static_cast<float>(std::sqrt(sum.value()))), epsilon(static_cast<float>(config_.ns_epsilon));
    muon_divide(flat, std::max(static_cast<float>(norm), static_cast<float>(epsilon)), stream());
    const auto [a, b, c] = config_.ns_coefficients;
    for (int i = 0; i < iterations; ++i) {
      if (matrix.tall()) {
        linear_backward_weight(squared, x, x, false, stream());  // x^T x
        cast(square, squared, stream());
      } else {
        linear_forward(square, x, x, Tensor(), stream());  // x x^T
      }
      linear_forward(squared, square, square, Tensor(), stream());
      muon_add_product(square.reshaped({side * side}), static_cast<float>(b), of_squares, static_cast<float>(c),
                       stream());
      if (matrix.tall()) {
        linear_forward(like_x, x, square, Tensor(), stream());
      } else {
        linear_backward_input(like_x, square, x, false, stream());
      }
      muon_add_product(flat, static_cast<float>(a), product, 1, stream());
    }
  }

  /// Sends the iterated matrix to all ranks, and updates the masters that this one holds.
  void distribute(const Matrix& matrix, int from) {
    const Tensor whole = room(matrix, from);
    const int ranks = params_->units().options().size;
    if (ranks > 1) {
      std::vector<int64_t> borders(static_cast<size_t>(ranks) + 1, matrix.elements());
      std::fill_n(borders.begin(), from + 1, 0);
      args().ranks->all_gather(whole, borders, stream()).finish(stream());
    }
    const double rate = args().learning_rate * matrix.lr_scale;
    const auto decay = static_cast<float>(1 - rate * config_.weight_decay);
    const auto factor = static_cast<float>(-rate * adjustment(matrix));
    each_part(matrix, master, [&](int64_t begin, const Tensor& values, const Tensor&) {
      muon_apply(values, whole.rows(begin - matrix.first, values.numel()), decay, factor, stream());
    });
  }
  double adjustment(const Matrix& matrix) const {
    const auto a = static_cast<double>(matrix.transposed ? matrix.columns : matrix.rows);
    const auto b = static_cast<double>(matrix.transposed ? matrix.rows : matrix.columns);
    if (config_.adjust_lr_fn == OptimizerConfig::AdjustLr::match_rms_adamw) return 0.2 * std::sqrt(std::max(a, b));
    return std::sqrt(std::max(1.0, a / b));
  }

  /// Calls work(first element, values of a plane, gradient) for the parts of the matrix that this rank updates; changes
  /// of the values are stored.
  template <class Work>
  void each_part(const Matrix& matrix, size_t plane, const Work& work) {
    for (size_t segment = 0; segment < params_->units()[matrix.unit].segments.size(); ++segment) {
      const ParamStore::Shard shard = params_->shard(matrix.unit, segment);
      const int64_t begin = std::max(matrix.first, shard.begin), end = std::min(matrix.last(), shard.end);
      const auto part = [&](const Tensor& t, int64_t from, int64_t to) {
        return t.rows(from - shard.begin, to - from);
      };
      if (begin >= end) continue;
      if (!params_->offload().has(plane)) {
        work(begin, part(shard.states[plane], begin, end), part(shard.gradient, begin, end));
        continue;
      }
      for (int64_t at = begin, next = begin; at < end; at = next) {
        next = std::min(end, at + piece_.numel());
        const Tensor values = read_piece(matrix.unit, plane, at, next);
        work(at, values, part(shard.gradient, at, next));
        write_piece(matrix.unit, plane, at, values);
      }
    }
  }
  Tensor read_piece(int unit, size_t plane, int64_t begin, int64_t end) {
    const Tensor values = piece_.rows(0, end - begin);
    params_->read_state(unit, plane, begin, end - begin, host_piece(), stream());
    if (!device_memory_is_host()) copy_to_device(values.data, host_piece(), values.bytes(), stream());
    return values;
  }
  void write_piece(int unit, size_t plane, int64_t begin, const Tensor& values) {
    if (!device_memory_is_host()) copy_to_host(host_piece(), values.data, values.bytes(), stream());
    stream().synchronize();
    params_->write_state(unit, plane, begin, values.numel(), host_piece(), stream());
  }
  float* host_piece() {
    if (device_memory_is_host()) return piece_.as<float>();
    host_piece_.resize(static_cast<size_t>(piece_.numel()));
    return host_piece_.data();
  }

  /// Matrices have new masters: their weights follow. All else is updated as by adamw.
  void update_shard(int unit, const ParamStore::Shard& shard) override {
    int64_t begin = shard.begin;
    while (begin < shard.end) {
      const int64_t end = shard.planes->end_of_run(begin, shard.end);
      const ParamStore::Shard part = shard.part(begin, end);
      if (shard.planes->at(second_moment, begin).per_chunk == 0) {
        round_masters(part, stream());
      } else {
        for (const UnitRange& range : ranges(unit)) update_by_adamw(part, part.part_of(range));
      }
      begin = end;
    }
  }
  void update_by_adamw(const ParamStore::Shard& part, const UnitRange& range) {
    if (range.begin >= range.end) return;
    const auto of = [&](const Tensor& t) {
      return t.empty() ? t : t.rows(range.begin - part.begin, range.end - range.begin);
    };
    AdamwStep step{.beta1 = config_.beta1, .beta2 = config_.beta2, .epsilon = config_.epsilon, .step = args().step};
    set_common(step, range, config_.weight_decay);
    const Tensor values = of(part.master()), m = of(part.states[momentum]), v = of(part.states[second_moment]);
    if (part.on_host) {
      adamw_update_on_host(values, m, v, of(part.gradient), of(part.weights), step);
    } else {
      adamw_update(values, m, v, of(part.gradient), of(part.weights), step, stream());
    }
  }

  OptimizerConfig config_;
  std::vector<Matrix> matrices_;  ///< by descending work
  Tensor own_, others_;           ///< bf16: the matrix of this rank, and one of another rank
  Tensor square_;                 ///< bf16: of a matrix's shorter side
  Tensor product_;                ///< fp32
  Tensor piece_;                  ///< fp32: of offloaded state
  std::vector<float> host_piece_;
  ParamStore* params_ = nullptr;  ///< of the update in progress
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config) { return std::make_unique<Muon>(config); }

}  // namespace llmtrain
