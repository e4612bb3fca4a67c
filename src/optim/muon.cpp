// Muon (Jordan et al. 2024), in the order of operations of torch.optim.Muon: a hidden matrix follows an average of its
// gradients, whose singular values five Newton-Schulz iterations bring near 1, in bf16. All else is updated as by
// adamw.
//
// A matrix is a Hugging Face tensor, also inside a fused matrix. One rank iterates it: the matrices are taken by
// descending work, as many at a time as there are ranks. The owners of a matrix's shards send their parts of its
// average to that rank alone, and receive the same parts of the iterated matrix. At stage 0 every rank has the average,
// and the parts are gathered afterwards, once a node.

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

/// Elements [begin, end) of a unit that a rank owns.
struct Part {
  int64_t begin, end;
  int rank;

  int64_t elements() const { return end - begin; }
};

/// A tensor that is orthogonalised.
struct Matrix {
  int unit;
  int64_t first;          ///< element of the unit
  int64_t rows, columns;  ///< as stored: [out, in]
  bool transposed;        ///< for torch it is [columns, rows]
  double lr_scale;
  int rank = 0;                  ///< that iterates it
  std::vector<Part> parts = {};  ///< in the order of elements: all of them on that rank, on another one its own
  int64_t place = 0;             ///< of these in the memory for parts

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

void add_parts(Matrix& matrix, const UnitState& unit, const ParamStoreOptions& options) {
  const bool all = matrix.rank == options.rank;
  for (const UnitSegment& s : unit.segments) {
    if (s.last <= matrix.first || s.first >= matrix.last()) continue;
    for (int rank = all ? 0 : options.rank; rank < (all ? options.size : options.rank + 1); ++rank) {
      const ShardBorders shard = borders_of_shard(s.elements(), rank, options.size);
      const int64_t begin = std::max(matrix.first, s.first + shard.begin);
      const int64_t end = std::min(matrix.last(), s.first + shard.end);
      if (begin < end) matrix.parts.push_back({begin, end, rank});
    }
  }
}

/// Without their parts.
std::vector<Matrix> hidden_matrices(const UnitStates& units) {
  std::vector<Matrix> matrices;
  for_each_slice(units, [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    if (!units[at.unit].trained() || !param.hidden || slice.fixed) return;
    const int64_t first = units[at.unit].layout.offset(at.param, at.slice);
    matrices.push_back({at.unit, first, slice.rows, param.columns, slice.transposed, param.lr_scale});
  });
  std::ranges::stable_sort(matrices, std::greater<>(), &Matrix::work);
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].rank = static_cast<int>(i % static_cast<size_t>(units.options().size));
  }
  return matrices;
}

class Muon : public ElementOptimizer {
 public:
  explicit Muon(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override { return {{"master"}, {"m"}, {"v", DType::f32, 0, second_moments}}; }

  void plan(const ParamStore& params, Arena& arena) override {
    matrices_ = hidden_matrices(params.units());
    for (Matrix& matrix : matrices_) add_parts(matrix, params.units()[matrix.unit], params.units().options());
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
    plan_transfers(params, elements, arena);
    add(square_, "square of a matrix", DType::bf16, square);
    add(product_, "product of matrices", DType::f32, std::max(elements, square));
    add(sum_, "squares of a matrix", DType::i64, ExactSum::integer_count);
    add(divisor_, "norm of a matrix", DType::f32, 1);
    if (params.offload().has(master) || params.offload().has(momentum)) {
      add(piece_, "piece of a matrix's state", DType::f32, std::min(elements, piece_elements));
    }
  }

  std::vector<WholeTensor> whole_tensors(const UnitStates& units) const override {
    std::vector<WholeTensor> tensors;
    for (const Matrix& matrix : hidden_matrices(units)) {
      tensors.push_back({matrix.unit, matrix.first, matrix.last(), matrix.rank});
    }
    return tensors;
  }

 private:
  void before_pass(ParamStore& params) override {
    params_ = &params;
    const std::optional<double> factor = matrices_.empty() ? std::nullopt : gradient_factor(args(), stream());
    if (!factor) return;
    LLMTRAIN_CHECK(args().ranks != nullptr && !own_.empty(), "muon needs the communicator and its planned memory");
    params.begin_change();
    const auto ranks = static_cast<size_t>(options().size);
    for (size_t first = 0; first < matrices_.size(); first += ranks) {
      const std::span batch = std::span(matrices_).subspan(first, std::min(ranks, matrices_.size() - first));
      for (const Matrix& matrix : batch) average(matrix, *factor);
      if (!gathers()) move_parts(batch, Way::to_matrix);
      if (const auto mine = static_cast<size_t>(rank()); mine < batch.size()) orthogonalize(batch[mine]);
      move_parts(batch, Way::to_owners);
      for (const Matrix& matrix : batch) apply(matrix);
    }
  }

  enum class Way : uint8_t { to_matrix, to_owners };

  const ParamStoreOptions& options() const { return params_->units().options(); }
  int rank() const { return options().rank; }
  /// True at stage 0 of several ranks, where each one updates all masters.
  bool gathers() const { return options().size > 1 && params_->units().policy().whole_state; }

  void plan_transfers(const ParamStore& params, int64_t elements, Arena& arena) {
    const ParamStoreOptions& options = params.units().options();
    if (options.size == 1) return;
    int64_t most = 0, elements_of_batch = 0;
    size_t messages = 0, messages_of_batch = 0;
    for (Matrix& matrix : matrices_) {
      if (matrix.rank == 0) elements_of_batch = 0, messages_of_batch = 0;
      matrix.place = elements_of_batch;
      const bool mine = matrix.rank == options.rank;
      if (!mine) messages_of_batch += matrix.parts.size();
      for (const Part& part : matrix.parts) elements_of_batch += mine ? 0 : part.elements();
      most = std::max(most, elements_of_batch);
      messages = std::max({messages, messages_of_batch, mine ? matrix.parts.size() : 0});
    }
    const auto add = [&](Tensor& t, const char* name, int64_t count, MemoryScope scope) {
      arena.add(t, MemoryCategory::optimizer, name, DType::bf16, {count}, scope);
    };
    if (most > 0) add(parts_, "parts of matrices", most, MemoryScope::own);
    if (params.units().policy().whole_state) add(whole_, "gathered matrix", elements, options.exchanged());
    sends_.reserve(messages);
    receives_.reserve(messages);
  }

  /// Updates the averages that this rank holds: what follows from them is in `own_` if this rank iterates the matrix.
  void average(const Matrix& matrix, double scale) {
    const MuonMomentum step{config_.momentum, config_.nesterov, scale};
    each_part(matrix, momentum, [&](int64_t begin, const Tensor& average, const Tensor& gradient) {
      muon_momentum(values(matrix, begin, average.numel()), average, gradient, step, stream());
    });
  }

  /// Values of elements of a matrix that this rank updates.
  Tensor values(const Matrix& matrix, int64_t begin, int64_t count) const {
    if (gathers() && matrix.rank != rank()) return whole_.rows(begin - matrix.first, count);
    return part_values(matrix, begin, count);
  }
  /// The same of elements that this rank owns.
  Tensor part_values(const Matrix& matrix, int64_t begin, int64_t count) const {
    if (matrix.rank == rank()) return own_.rows(begin - matrix.first, count);
    int64_t place = matrix.place;
    for (const Part& part : matrix.parts) {
      if (begin < part.end) return parts_.rows(place + begin - part.begin, count);
      place += part.elements();
    }
    throw Error("elements of another rank");
  }

  /// Moves parts of the matrices between their owners and the ranks that iterate the matrices.
  void move_parts(std::span<const Matrix> batch, Way way) {
    if (options().size == 1) return;
    std::vector<Communicator::Message>& of_owner = way == Way::to_matrix ? sends_ : receives_;
    std::vector<Communicator::Message>& of_matrix = way == Way::to_matrix ? receives_ : sends_;
    sends_.clear();
    receives_.clear();
    for (const Matrix& matrix : batch) {
      const bool mine = matrix.rank == rank();
      for (const Part& part : matrix.parts) {
        if (mine && part.rank == rank()) continue;
        (mine ? of_matrix : of_owner)
            .push_back({part_values(matrix, part.begin, part.elements()), mine ? part.rank : matrix.rank});
      }
    }
    args().ranks->send_and_receive(sends_, receives_, stream()).finish(stream());
  }

  /// Newton-Schulz iterations of the matrix in own_.
  void orthogonalize(const Matrix& matrix) {
    const Tensor flat = own_.rows(0, matrix.elements()), x = flat.reshaped({matrix.rows, matrix.columns});
    const int64_t side = matrix.side();
    const Tensor square = square_.rows(0, side * side).reshaped({side, side});
    const Tensor of_squares = product_.rows(0, side * side), product = product_.rows(0, matrix.elements());
    const Tensor squared = of_squares.reshaped({side, side}), like_x = product.reshaped({matrix.rows, matrix.columns});
    cast(product, flat, stream());
    fill_zero(sum_.data, sum_.bytes(), stream());
    sum_of_squares(sum_, product, stream());
    muon_normalize(flat, sum_, static_cast<float>(config_.ns_epsilon), divisor_, stream());
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

  /// Updates the masters that this rank holds from the iterated matrix.
  void apply(const Matrix& matrix) {
    if (gathers()) gather(matrix);
    const double rate = args().learning_rate * matrix.lr_scale;
    const auto decay = static_cast<float>(1 - rate * config_.weight_decay);
    const auto factor = static_cast<float>(-rate * adjustment(matrix));
    each_part(matrix, master, [&](int64_t begin, const Tensor& masters, const Tensor&) {
      const Tensor update =
          gathers() ? whole_.rows(begin - matrix.first, masters.numel()) : values(matrix, begin, masters.numel());
      muon_apply(masters, update, decay, factor, stream());
    });
  }
  /// Gathers the parts of all ranks in `whole_`.
  void gather(const Matrix& matrix) {
    for (const Part& part : matrix.parts) {
      if (part.rank != rank()) continue;
      const Tensor from = part_values(matrix, part.begin, part.elements());
      copy_on_device(whole_.rows(part.begin - matrix.first, part.elements()).data, from.data, from.bytes(), stream());
    }
    const UnitState& unit = params_->units()[matrix.unit];
    borders_.clear();
    for (const UnitSegment& s : unit.segments) {
      if (s.last <= matrix.first || s.first >= matrix.last()) continue;
      if (!borders_.empty()) borders_.pop_back();
      for (const int64_t border : s.borders)
        borders_.push_back(std::clamp(s.first + border, matrix.first, matrix.last()) - matrix.first);
    }
    args().ranks->all_gather(whole_.rows(0, matrix.elements()), borders_, stream()).finish(stream());
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
  Tensor own_;                    ///< bf16: the matrix that this rank iterates
  Tensor parts_;                  ///< bf16: this rank's parts of those that others do
  Tensor whole_;                  ///< bf16: a gathered matrix
  Tensor square_;                 ///< bf16: of a matrix's shorter side
  Tensor product_;                ///< fp32
  Tensor sum_, divisor_;          ///< of squares of the matrix, and what it is divided by
  Tensor piece_;                  ///< fp32: of offloaded state
  std::vector<float> host_piece_;
  std::vector<Communicator::Message> sends_, receives_;
  std::vector<int64_t> borders_;
  ParamStore* params_ = nullptr;  ///< of the update in progress
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config) { return std::make_unique<Muon>(config); }

}  // namespace llmtrain
