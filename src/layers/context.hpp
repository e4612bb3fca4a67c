#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "core/params.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/matmul.hpp"
#include "layers/kv_cache.hpp"
#include "layers/sharing/shared_rows.hpp"
#include "layers/sharing/tensor_sum.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

class ExpertExchange;
class LogitLoss;
class RouterLosses;
class SharedGradients;

/// Context of a pass for every layer. Dropout is active when training.
struct Context {
  ParamStore& params;
  Arena& arena;
  Stream& stream;
  uint64_t seed = 0;
  int64_t step = 0;
  bool training = false;
  const KvCache* cache = nullptr;  ///< null except in generation
  bool adapters = true;            ///< false: the base model, without its adapters
  float temperature = 1;           ///< divides the logits before statistics, in rollouts and their updates
  /// Role of all matrix products. Outside training, the bits of a row do not depend on the other rows.
  ProductRole role = ProductRole::training;
  const int64_t* device_step = nullptr;  ///< int64 [1] of a GPU: `step`, for kernels in graphs; may be null
  bool later_rows = false;               ///< the head's backward pass goes on with further rows of its micro-batch
  SharedRows* rows = nullptr;            ///< of micro-batches that several blocks share; null: one has all rows
  TensorSum* tensor = nullptr;           ///< of models whose matrices are split into blocks; the model sets it
  ExpertExchange* experts = nullptr;     ///< of models whose experts several ranks share; the model sets it
  RouterLosses* router = nullptr;        ///< gets the statistics of routers, in training; may be null
  LogitLoss* logit_loss = nullptr;       ///< replaces the gradient of statistics, in training; may be null
  SharedGradients* shared = nullptr;     ///< set while a block of a split layer runs backward
  Tensor row_norms = {};                 ///< fp32 [M]: norms of whole rows, while a block that has parts of them runs
  std::vector<int64_t> pair_block_ends = {};  ///< row_block_ends(), while an expert has its rows of several blocks
  mutable int64_t row_block = 0;              ///< number of the block whose rows each_row_block() has
  mutable bool in_row_block = false;          ///< each_row_block() runs: what is called has the rows of one block

  /// Exchanges the heads of ranks that share the rows of a batch; null: this rank has all rows.
  HeadExchange* heads() const { return rows != nullptr ? rows->heads() : nullptr; }
  /// Ends of the rows of each block, whose gradients of parameters are apart; empty: one block has all rows.
  std::span<const int64_t> row_block_ends() const {
    if (!pair_block_ends.empty()) return pair_block_ends;
    return rows != nullptr ? rows->block_ends() : std::span<const int64_t>();
  }
  /// Calls f(first row, number of rows) for the rows of each block, into whose gradients it writes. Inside such a call,
  /// where `all` are rows of one block, it calls f once for these.
  template <class F>
  void each_row_block(int64_t all, const F& f) const {
    if (in_row_block || row_block_ends().empty()) return f(0, all);
    const RowBlockScope scope(*this);
    int64_t first = 0;
    for (const int64_t end : row_block_ends()) {
      params.reducer().set_group(row_block);
      f(first, end - first);
      first = end;
      ++row_block;
    }
  }

  /// Rows for which tensors of a pass are planned: at least those of every rank that shares the batch.
  int64_t planned_rows(const Batch& batch) const { return rows != nullptr ? rows->max_rows() : batch.tokens; }
  /// True if gradients of parameters are added to, false if they are overwritten.
  bool accumulate() const { return later_rows || params.accumulate(); }

 private:
  /// From the first block of rows to the end of the last one.
  class RowBlockScope {
   public:
    explicit RowBlockScope(const Context& ctx) : ctx_(ctx) { ctx.in_row_block = true; }
    ~RowBlockScope() {
      ctx_.in_row_block = false;
      ctx_.row_block = 0;
      ctx_.params.reducer().set_group(0);
    }
    RowBlockScope(const RowBlockScope&) = delete;
    RowBlockScope& operator=(const RowBlockScope&) = delete;

   private:
    const Context& ctx_;
  };
};

/// Calls pass(rows, statistics) for this rank's rows of a batch, then gathers the statistics of all rows; for a null
/// batch, an idle pass, once with that.
template <class F>
void run_shared(Context& ctx, const Batch* batch, const TokenStatistics& statistics, const F& pass) {
  if (batch == nullptr || ctx.rows == nullptr) return pass(batch, statistics);
  const Batch own = ctx.rows->choose(*batch);
  pass(&own, ctx.rows->own(statistics));
  ctx.rows->gather(statistics, ctx.stream);
}

/// Dropout of one place of the model in the current step; inactive except in training.
inline Dropout step_dropout(const Context& ctx, double probability, RandomPurpose purpose, uint64_t place = 0) {
  if (!ctx.training || probability == 0) return {};
  return {static_cast<float>(probability),
          random_key(ctx.seed, purpose, static_cast<uint64_t>(ctx.step), place),
          {ctx.device_step, ctx.seed, purpose, place}};
}

/// A parameter of a layer; may be absent.
struct ParamRef {
  int unit = -1;
  int param = -1;
  bool trained = true;

  bool exists() const { return unit >= 0; }
  bool is_trained() const { return exists() && trained; }
  Tensor weight(const Context& ctx) const { return exists() ? ctx.params.weight(unit, param) : Tensor(); }
  /// A matrix of any storage, which exists.
  WeightMatrix matrix(const Context& ctx) const { return ctx.params.matrix(unit, param); }
  /// Empty if the parameter is frozen. While a block of a split layer runs, that of a parameter that all blocks share
  /// is the block's own.
  Tensor gradient(Context& ctx) const;
  /// True if that gradient is added to, false if it is overwritten.
  bool accumulates(const Context& ctx) const;
  bool operator==(const ParamRef&) const = default;
};

/// Consecutive units that are used together.
struct UnitGroup {
  int first = 0;
  int count = 0;

  void acquire(ParamStore& params) const {
    each([&](int unit) { params.acquire(unit); });
  }
  void prefetch(ParamStore& params) const {
    each([&](int unit) { params.prefetch(unit); });
  }
  void release(ParamStore& params) const {
    each([&](int unit) { params.release(unit); });
  }
  void join_reductions(ParamStore& params) const {
    each([&](int unit) { params.join_reductions(unit); });
  }
  void reduce(ParamStore& params) const {
    each([&](int unit) { params.reduce(unit); });
  }

 private:
  template <class F>
  void each(const F& f) const {
    for (int unit = first; unit < first + count; ++unit) f(unit);
  }
};

/// Says by its external name whether a parameter is trained; empty: all are.
using TrainedRule = std::function<bool(const std::string& name)>;

/// Says by its external name whether and how a frozen matrix is stored in fewer bits; empty: none is.
using QuantizationRule = std::function<std::optional<Quantization>(const std::string& name)>;

/// Collects the parameters of the layers that make up one unit, or several if some are trained, frozen, and frozen in
/// fewer bits, or belong to blocks of split matrices. A fused matrix with trained slices lies in the trained one; the
/// layer zeroes the gradient of its fixed slices.
class UnitBuilder {
 public:
  /// Appends to `units`. The trained part of a divided unit is named `name`.trained, that of fewer bits
  /// `name`.quantized; those of blocks begin with `name`.tensor.b, `name`.experts.e or `name`.tensor.b.experts.e.
  UnitBuilder(std::vector<UnitSpec>& units, std::string name, TrainedRule trained = {},
              QuantizationRule quantization = {})
      : units_(units),
        name_(std::move(name)),
        trained_(std::move(trained)),
        quantization_(std::move(quantization)),
        first_(static_cast<int>(units.size())) {}

  ParamRef matrix(std::string name, int64_t rows, int64_t columns, Initializer init, std::vector<ParamSlice> slices) {
    return add({std::move(name), rows, columns, true, init, std::move(slices)});
  }
  /// A hidden matrix, whose gradient is written by ParamStore::RowBlocks.
  ParamRef hidden_matrix(std::string name, int64_t rows, int64_t columns, Initializer init,
                         std::vector<ParamSlice> slices) {
    ParamSpec spec{std::move(name), rows, columns, true, init, std::move(slices)};
    spec.by_rows = true;
    spec.early = early_;
    spec.hidden = true;
    return add(std::move(spec));
  }
  ParamRef vector(std::string name, int64_t rows, Initializer init, std::vector<ParamSlice> slices) {
    return add({std::move(name), rows, 1, false, init, std::move(slices)});
  }
  /// A vector of zeros that no gradient changes: its layer gives it a gradient of zero, unless it is frozen.
  ParamRef fixed_vector(const std::string& name, int64_t rows) {
    const bool trained = is_trained(name);
    return add({name, rows, 1, false, Initializer::zeros(), {{name, 0, rows, false, trained}}}, trained, {});
  }
  /// Adds a parameter that is trained whatever the rule says.
  ParamRef trained(ParamSpec spec) { return add(std::move(spec), true, {}); }
  /// What follows belongs to this block of split matrices, or to all with -1, and gets units of its own.
  void set_block(int64_t block) {
    block_ = block;
    expert_block_ = -1;
  }
  /// Later hidden matrices are early ones, or not (ParamSpec::early).
  void set_early(bool early) { early_ = early; }
  /// Later parameters belong to this block of experts (UnitSpec::expert_block).
  void set_expert_block(int64_t block) { expert_block_ = block; }
  bool is_trained(const std::string& name) const { return !trained_ || trained_(name); }
  /// Storage of a parameter in fewer bits, if it has one.
  std::optional<QuantizedType> quantized_type(const ParamRef& param) const {
    const std::optional<Quantization>& format = units_[static_cast<size_t>(param.unit)].quantization;
    return format ? std::optional(format->type) : std::nullopt;
  }
  /// The units so far.
  UnitGroup group() const { return {first_, static_cast<int>(units_.size()) - first_}; }

 private:
  ParamRef add(ParamSpec spec);
  ParamRef add(ParamSpec spec, bool trained, const std::optional<Quantization>& quantization);
  std::optional<Quantization> quantization_of(const ParamSpec& spec) const;
  int add_unit(bool trained, const std::optional<Quantization>& quantization);
  bool is_of_blocks(const UnitSpec& u) const { return u.tensor_block == block_ && u.expert_block == expert_block_; }

  std::vector<UnitSpec>& units_;
  std::string name_;
  TrainedRule trained_;
  QuantizationRule quantization_;
  int first_;
  int64_t block_ = -1, expert_block_ = -1;
  bool early_ = false;
};

/// The first n rows of a buffer planned for more rows.
inline Tensor first_rows(const Tensor& t, int64_t n) { return t.empty() ? t : t.rows(0, n); }

}  // namespace llmtrain
