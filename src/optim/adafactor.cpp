// Adafactor (Shazeer and Stern 2018, arXiv:1804.04235), in the order of operations of Transformers' Adafactor. The
// second moment of a matrix is the product of a vector of its rows and one of its columns, whose sums run over a whole
// Hugging Face tensor: they are sums of integers over all ranks, and so the same on any number of them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/params.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain {

namespace {

/// Sums of squares over the rows and columns of a matrix, as integers, so that their order does not matter:
/// over the Hugging Face tensors in a matrix, each with columns of its own. Squares are multiples of 2^-80 of the
/// largest one's power of two, in two integers of 40 bits; smaller parts are cut off.
class MatrixSums {
 public:
  explicit MatrixSums(const ParamSpec& matrix)
      : matrix_(matrix),
        maxima_(matrix.slices.size()),
        integers_(static_cast<size_t>(2 * (matrix.rows + std::ssize(matrix.slices) * matrix.columns))) {}

  /// Values from element `first` of the matrix on. First all are seen, then the maxima of all ranks are known and
  /// begin() is called, then all are added.
  void see(int64_t first, std::span<const float> values) {
    each(first, values, [&](size_t slice, int64_t, int64_t, float g) {
      maxima_[slice] = std::max(maxima_[slice], int64_t{std::bit_cast<int32_t>(std::fabs(g))});
    });
  }
  std::span<int64_t> maxima() { return maxima_; }
  void begin() {
    for (const int64_t bits : maxima_) {
      const auto largest = std::bit_cast<float>(static_cast<int32_t>(bits));
      exponents_.push_back(largest > 0 && std::isfinite(largest) ? std::ilogb(largest) + 1 : 0);
    }
  }
  void add(int64_t first, std::span<const float> values) {
    each(first, values, [&](size_t slice, int64_t row, int64_t column, float g) {
      const double part = std::ldexp(double{g}, -exponents_[slice]), square = part * part * unit;  // exact
      const double high = std::floor(square), low = std::floor((square - high) * unit);
      for (const int64_t at : {row, matrix_.rows + column}) {
        integers_[static_cast<size_t>(2 * at)] += static_cast<uint64_t>(high);
        integers_[static_cast<size_t>(2 * at + 1)] += static_cast<uint64_t>(low);
      }
    });
  }
  std::span<uint64_t> integers() { return integers_; }

  std::vector<float> row_means() const {
    std::vector<float> means;
    for (size_t slice = 0; slice < matrix_.slices.size(); ++slice) {
      const ParamSlice& s = matrix_.slices[slice];
      for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) means.push_back(mean(r, slice, matrix_.columns));
    }
    return means;
  }
  std::vector<float> column_means() const {
    std::vector<float> means;
    for (size_t slice = 0; slice < matrix_.slices.size(); ++slice) {
      for (int64_t c = 0; c < matrix_.columns; ++c) {
        const int64_t at = matrix_.rows + static_cast<int64_t>(slice) * matrix_.columns + c;
        means.push_back(mean(at, slice, matrix_.slices[slice].rows));
      }
    }
    return means;
  }

 private:
  static constexpr double unit = 0x1p40;

  /// Calls visit(slice, row, column of all slices, value).
  template <class Visit>
  void each(int64_t first, std::span<const float> values, const Visit& visit) const {
    size_t slice = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t element = first + static_cast<int64_t>(i), row = element / matrix_.columns;
      while (row >= matrix_.slices[slice].first_row + matrix_.slices[slice].rows) ++slice;
      visit(slice, row, static_cast<int64_t>(slice) * matrix_.columns + element % matrix_.columns, values[i]);
    }
  }
  float mean(int64_t at, size_t slice, int64_t count) const {
    const auto high = static_cast<double>(integers_[static_cast<size_t>(2 * at)]);
    const auto low = static_cast<double>(integers_[static_cast<size_t>(2 * at + 1)]);
    const double sum = std::ldexp(std::fma(low, 1 / unit, high) / unit, 2 * exponents_[slice]);
    return static_cast<float>(sum / static_cast<double>(count) + 1e-30);
  }

  const ParamSpec& matrix_;
  std::vector<int64_t> maxima_;  ///< bits of the largest magnitude, by slice
  std::vector<int> exponents_;
  std::vector<uint64_t> integers_;  ///< of rows, then of columns
};

constexpr float square_epsilon = 1e-30F;    ///< added to each square of a gradient
constexpr double min_parameter_rms = 1e-3;  ///< smallest root mean square that scales the rate
constexpr double decay_exponent = -0.8;

bool is_matrix(const ParamSpec& param) { return param.columns > 1 || param.decay; }
int64_t chunks_of(const ParamSpec& param) { return (param.numel() + chunk_elements - 1) / chunk_elements; }
int64_t column_values(const ParamSpec& param) { return std::ssize(param.slices) * param.columns; }
/// Values of rows and columns are spread over the chunks of the matrix; a vector has one per element.
int64_t rows_in_chunk(const ParamSpec& param, const ParamSlice& /*slice*/) {
  return is_matrix(param) ? (param.rows + chunks_of(param) - 1) / chunks_of(param) : chunk_elements;
}
int64_t columns_in_chunk(const ParamSpec& param, const ParamSlice& /*slice*/) {
  return is_matrix(param) ? (column_values(param) + chunks_of(param) - 1) / chunks_of(param) : 0;
}

enum Plane : size_t { master, v_row, v_column, momentum };

/// Memory of the device in host memory: a copy, unless it is the same.
class HostCopy {
 public:
  HostCopy(const Tensor& tensor, bool on_host, Stream& stream) : tensor_(tensor), stream_(stream) {
    copied_ = !on_host && !device_memory_is_host() && !tensor.empty();
    if (!copied_) return;
    values_.resize(static_cast<size_t>(tensor.numel()));
    copy_to_host(values_.data(), tensor.data, tensor.bytes(), stream);
    stream.synchronize();
  }
  float* data() { return copied_ ? values_.data() : tensor_.as<float>(); }
  void store() {
    if (!copied_) return;
    copy_to_device(tensor_.data, values_.data(), tensor_.bytes(), stream_);
    stream_.synchronize();
  }

 private:
  Tensor tensor_;
  Stream& stream_;
  bool copied_ = false;
  std::vector<float> values_;
};

/// Factors that a step applies to a parameter beside its elements.
struct Factors {
  std::vector<float> row, column;  ///< inverse roots, of a matrix
  std::vector<float> divisor;      ///< by slice: of the update, that clips it
  std::vector<float> rate;         ///< by slice
};

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const OptimizerConfig& config) : config_(config) {}

  StatePlanes states() const override {
    StatePlanes planes{
        {"master"}, {"v.row", DType::f32, 0, rows_in_chunk}, {"v.column", DType::f32, 0, columns_in_chunk}};
    if (config_.beta1 > 0) planes.push_back({"m"});
    return planes;
  }

  void update(ParamStore& params, const UpdateArgs& args, Stream& stream) override {
    LLMTRAIN_CHECK(args.ranks != nullptr, "adafactor looks at whole tensors and needs the communicator");
    params.finish_update();
    params_ = &params;
    ranks_ = args.ranks;
    stream_ = &stream;
    const std::optional<double> factor_of_step = gradient_factor(args, stream);
    if (!factor_of_step) return;
    scale_ = static_cast<float>(*factor_of_step);
    rate_ = args.learning_rate;
    const auto t = static_cast<double>(args.step);
    if (config_.relative_step) rate_ = std::min(1e-2, 1 / std::sqrt(t));
    beta2_ = 1 - std::pow(t, decay_exponent);
    factors_.assign(static_cast<size_t>(params.units().size()), {});
    squares_.clear();
    for (int unit = 0; unit < params.units().size(); ++unit) {
      if (!params.units()[unit].trained()) continue;
      for (int p = 0; p < static_cast<int>(params.units()[unit].spec.params.size()); ++p) {
        Factors& factors = factors_[static_cast<size_t>(unit)].emplace_back();
        if (is_matrix(param(unit, p))) {
          factor(unit, p, factors);
        } else {
          average_squares(unit, p);
        }
        add_squares(unit, p, factors);
      }
    }
    find_rates();
    params.update([this](int unit, const ParamStore::Shard& shard) { update_shard(unit, shard); });
  }

 private:
  const ParamSpec& param(int unit, int p) const { return params_->units()[unit].spec.params[static_cast<size_t>(p)]; }

  /// Calls visit(first element of the unit, end, scaled gradients from there on) for the parts of a parameter that this
  /// rank owns.
  template <class Visit>
  void each_owned(int unit, int p, const Visit& visit) const {
    const int64_t first = params_->units()[unit].layout.offset(p), last = first + param(unit, p).numel();
    for (size_t segment = 0; segment < params_->units()[unit].segments.size(); ++segment) {
      const UnitRange owned = params_->units().owned(unit, segment);
      const int64_t begin = std::max(first, owned.begin), end = std::min(last, owned.end);
      if (begin >= end) continue;
      const ParamStore::Shard shard = params_->shard(unit, segment);
      HostCopy gradient(shard.gradient.rows(begin - shard.begin, end - begin), false, *stream_);
      std::vector<float> scaled(static_cast<size_t>(end - begin));
      for (size_t i = 0; i < scaled.size(); ++i) scaled[i] = gradient.data()[i] * scale_;
      visit(begin, end, std::span<const float>(scaled));
    }
  }
  /// Calls visit(begin, end) for the whole chunks of a parameter that this rank owns or, if `updates`, holds.
  template <class Visit>
  void each_chunk_run(int unit, int p, bool updates, const Visit& visit) const {
    const int64_t first = params_->units()[unit].layout.offset(p),
                  last = first + chunks_of(param(unit, p)) * chunk_elements;
    for (size_t segment = 0; segment < params_->units()[unit].segments.size(); ++segment) {
      const ParamStore::Shard shard = params_->shard(unit, segment);
      const UnitRange owned = params_->units().owned(unit, segment);
      const int64_t begin = std::max(first, updates ? shard.begin : owned.begin);
      const int64_t end = std::min(last, updates ? shard.end : owned.end);
      if (begin < end) visit(begin, end);
    }
  }

  /// Updates the averages of a matrix's rows and columns, and keeps their inverse roots.
  void factor(int unit, int p, Factors& factors) {
    const ParamSpec& spec = param(unit, p);
    const int64_t first = params_->units()[unit].layout.offset(p);
    MatrixSums sums(spec);
    each_owned(unit, p, [&](int64_t begin, int64_t, std::span<const float> g) { sums.see(begin - first, g); });
    ranks_->maximum(sums.maxima());
    sums.begin();
    each_owned(unit, p, [&](int64_t begin, int64_t, std::span<const float> g) { sums.add(begin - first, g); });
    ranks_->sum(sums.integers());
    factors.row = averages(unit, p, v_row, spec.rows, sums.row_means());
    factors.column = averages(unit, p, v_column, column_values(spec), sums.column_means());
    for (const ParamSlice& slice : spec.slices) {
      const auto rows =
          std::span(factors.row).subspan(static_cast<size_t>(slice.first_row), static_cast<size_t>(slice.rows));
      double sum = 0;
      for (const float row : rows) sum += double{row};
      const auto mean = static_cast<float>(sum / static_cast<double>(slice.rows));
      for (float& row : rows) row = 1 / std::sqrt(row / mean);
    }
    for (float& column : factors.column) column = 1 / std::sqrt(column);
  }

  /// Returns the new values of a plane, all of them, and stores those that this rank holds.
  std::vector<float> averages(int unit, int p, size_t plane, int64_t count, const std::vector<float>& means) {
    const int64_t first = params_->units()[unit].layout.offset(p);
    const UnitPlanes& planes = params_->units()[unit].planes;
    std::vector<uint64_t> bits(
        static_cast<size_t>(planes.values(plane, first, first + chunks_of(param(unit, p)) * chunk_elements)));
    std::vector<float> part;
    each_chunk_run(unit, p, false, [&](int64_t begin, int64_t end) {
      part.resize(static_cast<size_t>(planes.values(plane, begin, end)));
      params_->read_state(unit, plane, begin, end - begin, part.data(), *stream_);
      const auto at = static_cast<size_t>(planes.values(plane, first, begin));
      for (size_t i = 0; i < part.size(); ++i) bits[at + i] = std::bit_cast<uint32_t>(part[i]);
    });
    ranks_->sum(std::span<uint64_t>(bits));  // each rank has values where the others have zeros
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const auto old = std::bit_cast<float>(static_cast<uint32_t>(bits[i]));
      values[i] = average(old, means[i]);
    }
    each_chunk_run(unit, p, true, [&](int64_t begin, int64_t end) {
      params_->write_state(unit, plane, begin, end - begin, values.data() + planes.values(plane, first, begin),
                           *stream_);
    });
    values.resize(static_cast<size_t>(count));
    return values;
  }
  float average(float old, float square) const {
    return std::fma(old, static_cast<float>(beta2_), static_cast<float>(1 - beta2_) * square);
  }

  /// Updates the second moment of a vector, element by element.
  void average_squares(int unit, int p) {
    each_chunk_run(unit, p, true, [&](int64_t begin, int64_t end) {
      std::vector<float> v(static_cast<size_t>(end - begin));
      params_->read_state(unit, v_row, begin, end - begin, v.data(), *stream_);
      for (size_t segment = 0; segment < params_->units()[unit].segments.size(); ++segment) {
        const ParamStore::Shard shard = params_->shard(unit, segment);
        const int64_t from = std::max(begin, shard.begin), to = std::min(end, shard.end);
        if (from >= to) continue;
        HostCopy gradient(shard.gradient.rows(from - shard.begin, to - from), false, *stream_);
        for (int64_t i = from; i < to; ++i) {
          const float g = gradient.data()[i - from] * scale_;
          float& value = v[static_cast<size_t>(i - begin)];
          value = average(value, std::fma(g, g, square_epsilon));
        }
      }
      params_->write_state(unit, v_row, begin, end - begin, v.data(), *stream_);
    });
  }

  /// Sums of squares of the updates and parameters of each slice, over the elements that this rank owns.
  void add_squares(int unit, int p, const Factors& factors) {
    const ParamSpec& spec = param(unit, p);
    const int64_t first = params_->units()[unit].layout.offset(p);
    std::vector<ExactSum> of_updates(spec.slices.size()), of_parameters(spec.slices.size());
    each_owned(unit, p, [&](int64_t begin, int64_t end, std::span<const float> g) {
      std::vector<float> values(config_.scale_parameter ? g.size() : 0), v(is_matrix(spec) ? 0 : g.size());
      if (!values.empty()) params_->read_state(unit, master_plane, begin, end - begin, values.data(), *stream_);
      if (!v.empty()) read_vector(unit, begin, v);
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<size_t>(i - begin);
        const size_t slice = slice_of(spec, i - first);
        const float u = update_of(spec, factors, slice, i - first, g[at], v.empty() ? 0 : v[at]);
        of_updates[slice].add(double{u} * double{u});
        if (!values.empty()) of_parameters[slice].add(double{values[at]} * double{values[at]});
      }
    });
    for (size_t slice = 0; slice < spec.slices.size(); ++slice) {
      squares_.push_back(of_updates[slice]);
      squares_.push_back(of_parameters[slice]);
    }
  }
  /// Reads the second moment of a vector's elements: whole chunks, of which the values of the first ones are wanted.
  void read_vector(int unit, int64_t begin, std::vector<float>& v) const {
    const int64_t whole = (std::ssize(v) + chunk_elements - 1) / chunk_elements * chunk_elements;
    std::vector<float> chunks(static_cast<size_t>(whole));
    params_->read_state(unit, v_row, begin, whole, chunks.data(), *stream_);
    std::copy_n(chunks.begin(), v.size(), v.begin());
  }

  static size_t slice_of(const ParamSpec& spec, int64_t element) {
    size_t slice = 0;
    while (element / spec.columns >= spec.slices[slice].first_row + spec.slices[slice].rows) ++slice;
    return slice;
  }
  /// The update of one element, before it is clipped.
  static float update_of(const ParamSpec& spec, const Factors& f, size_t slice, int64_t element, float g, float v) {
    if (!is_matrix(spec)) return 1 / std::sqrt(v) * g;
    const int64_t column = static_cast<int64_t>(slice) * spec.columns + element % spec.columns;
    return f.row[static_cast<size_t>(element / spec.columns)] * f.column[static_cast<size_t>(column)] * g;
  }

  /// Root mean squares of whole tensors, and what follows from them.
  void find_rates() {
    std::vector<int64_t> limbs;
    for (ExactSum& sum : squares_) {
      sum.carry();
      limbs.insert(limbs.end(), sum.limbs().begin(), sum.limbs().end());
    }
    ranks_->sum(std::span<int64_t>(limbs));
    auto at = limbs.begin();
    const auto root_mean = [&](double elements) {
      const double sum = exact_value(&*at);
      at += ExactSum::integer_count;
      return std::sqrt(sum / elements);
    };
    for (int unit = 0; unit < params_->units().size(); ++unit) {
      for (size_t p = 0; p < factors_[static_cast<size_t>(unit)].size(); ++p) {
        const ParamSpec& spec = param(unit, static_cast<int>(p));
        Factors& factors = factors_[static_cast<size_t>(unit)][p];
        for (const ParamSlice& slice : spec.slices) {
          const auto elements = static_cast<double>(slice.rows * spec.columns);
          factors.divisor.push_back(static_cast<float>(std::max(1.0, root_mean(elements) / config_.clip_threshold)));
          const double size = root_mean(elements);
          const double rate = rate_ * spec.lr_scale * (config_.scale_parameter ? std::max(min_parameter_rms, size) : 1);
          factors.rate.push_back(static_cast<float>(rate));
        }
      }
    }
  }

  void update_shard(int unit, const ParamStore::Shard& shard) {
    for (const UnitRange& range : params_->units()[unit].layout.ranges()) {
      for (int p = 0; p < static_cast<int>(params_->units()[unit].spec.params.size()); ++p) {
        const int64_t first = params_->units()[unit].layout.offset(p), last = first + param(unit, p).numel();
        const int64_t begin = std::max({first, shard.begin, range.begin});
        const int64_t end = std::min({last, shard.end, range.end});
        if (begin < end) update_elements(unit, p, shard, {begin, end, range.decay});
      }
    }
    round_masters(shard, *stream_);
  }

  void update_elements(int unit, int p, const ParamStore::Shard& shard, const UnitRange& range) {
    const ParamSpec& spec = param(unit, p);
    const Factors& factors = factors_[static_cast<size_t>(unit)][static_cast<size_t>(p)];
    const int64_t first = params_->units()[unit].layout.offset(p), count = range.end - range.begin;
    const auto of = [&](const Tensor& t) { return t.rows(range.begin - shard.begin, count); };
    HostCopy value(of(shard.master()), shard.on_host, *stream_), gradient(of(shard.gradient), shard.on_host, *stream_);
    const bool averages = config_.beta1 > 0;
    HostCopy m(averages ? of(shard.states[momentum]) : Tensor(), shard.on_host, *stream_);
    // A vector starts at a chunk, and so do its ranges.
    const int64_t v_at = is_matrix(spec) ? 0 : shard.planes->values(v_row, shard.begin, range.begin);
    HostCopy v(is_matrix(spec) ? Tensor() : shard.states[v_row].rows(v_at, count), shard.on_host, *stream_);
    float *values = value.data(), *means = averages ? m.data() : nullptr;
    const float *gradients = gradient.data(), *moments = is_matrix(spec) ? nullptr : v.data();
    const auto beta1 = static_cast<float>(config_.beta1), rest = static_cast<float>(1 - config_.beta1);
    const double decay = range.decay ? config_.weight_decay : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = range.begin + i - first;
      const size_t slice = slice_of(spec, element);
      const float rate = factors.rate[slice], moment = moments == nullptr ? 0 : moments[i];
      const float clipped =
          update_of(spec, factors, slice, element, gradients[i] * scale_, moment) / factors.divisor[slice];
      const float decayed = std::fma(values[i], static_cast<float>(-decay * double{rate}), values[i]);
      if (means == nullptr) {
        values[i] = std::fma(-clipped, rate, decayed);
      } else {
        means[i] = std::fma(means[i], beta1, rest * (clipped * rate));
        values[i] = decayed - means[i];
      }
    }
    value.store();
    if (averages) m.store();
  }

  OptimizerConfig config_;
  // Arguments of the update in progress.
  ParamStore* params_ = nullptr;
  Communicator* ranks_ = nullptr;
  Stream* stream_ = nullptr;
  float scale_ = 1;
  double rate_ = 0, beta2_ = 0;
  std::vector<std::vector<Factors>> factors_;  ///< by unit and parameter
  std::vector<ExactSum> squares_;              ///< by slice: of updates, then of parameters
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config) { return std::make_unique<Adafactor>(config); }

}  // namespace llmtrain
