#include "layers/experts.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/workspace.hpp"
#include "layers/router_losses.hpp"

namespace llmtrain {

namespace {

/// Lets no product depend on the other rows of a batch while it lives.
class RowwiseProducts {
 public:
  explicit RowwiseProducts(Context& ctx) : ctx_(ctx), role_(ctx.role) {
    if (role_ == ProductRole::training) ctx.role = ProductRole::prefill;
  }
  ~RowwiseProducts() { ctx_.role = role_; }
  RowwiseProducts(const RowwiseProducts&) = delete;
  RowwiseProducts& operator=(const RowwiseProducts&) = delete;

 private:
  Context& ctx_;
  ProductRole role_;
};

bool has_dropout(const Linear& linear) { return !linear.adapters.empty() && linear.adapters.front().dropout > 0; }

int64_t bytes_of(DType dtype, int64_t rows, int64_t columns) {
  return Arena::aligned(rows * columns * static_cast<int64_t>(size_of(dtype)));
}

}  // namespace

/// The sum of what a rank's experts add to it, fp32 [N, columns], over the blocks of all ranks.
class ExpertSum {
 public:
  ExpertSum(Context& ctx, Arena::Frame& frame, const std::optional<TensorShare>& share, int64_t rows, int64_t columns)
      : ctx_(ctx) {
    if (share) {
      blocks_.emplace(*ctx.tensor, frame, rows, columns);
    } else {
      term_ = frame.take(DType::f32, {rows, columns});
    }
  }
  static int64_t scratch_bytes(const std::optional<TensorShare>& share, int64_t elements) {
    return share ? BlockSum::scratch_bytes(*share, elements) : Arena::aligned(4 * elements);
  }

  void begin_block() {
    if (blocks_) term_ = blocks_->next();
    fill_zero(term_.data, term_.bytes(), ctx_.stream);
  }
  /// The sum to which the experts of the block add.
  const Tensor& term() const { return term_; }
  void end_block() {
    if (blocks_) blocks_->add(ctx_.stream);
  }
  Tensor finish() { return blocks_ ? blocks_->finish(ctx_.stream) : term_; }

 private:
  Context& ctx_;
  std::optional<BlockSum> blocks_;
  Tensor term_;
};

/// The pairs of this rank's experts.
class Experts::Pairs {
 public:
  Pairs(const Experts& experts, Context& ctx, Arena::Frame& frame, const Batch& batch, const ExpertsSaved& saved)
      : experts_(experts), ctx_(ctx), batch_(batch), order_(saved.order) {
    ends_ = host_values(first_rows(saved.ends, std::max<int64_t>(blocks(ctx), 1) * experts.rule.experts), ctx.stream);
    if (!ctx.training || !(has_dropout(experts.mlps.front().up) || has_dropout(experts.mlps.front().down))) return;
    places_.sequence_ids = frame.take(DType::i64, {batch.tokens});
    places_.sequence_offsets = frame.take(DType::i32, {batch.tokens});
  }
  static int64_t scratch_bytes(const Experts& experts, int64_t rows) {
    const Mlp& mlp = experts.mlps.front();
    if (!has_dropout(mlp.up) && !has_dropout(mlp.down)) return 0;
    return bytes_of(DType::i64, rows, 1) + bytes_of(DType::i32, rows, 1);
  }

  /// First pair of an expert among all; those of this rank's experts are stored from that of its first one on.
  int64_t begin(int64_t expert) const { return expert == 0 ? 0 : end(expert - 1); }
  int64_t count(int64_t expert) const { return end(expert) - begin(expert); }
  /// Rows of a tensor of this rank's pairs.
  Tensor of(const Tensor& pairs, int64_t expert) const {
    return pairs.empty() ? pairs : pairs.rows(begin(expert) - begin(experts_.first), count(expert));
  }
  MlpSaved of(const MlpSaved& saved, int64_t expert) const {
    return {of(saved.hidden, expert), of(saved.activated, expert)};
  }
  Tensor order(int64_t expert) const { return order_.rows(begin(expert), count(expert)); }

  /// Calls f(batch) with what adapters see of the rows of an expert, whose blocks of rows are those of its pairs.
  template <class F>
  void enter(int64_t expert, const F& f) const {
    Batch own;
    own.tokens = count(expert);
    if (!places_.sequence_ids.empty()) {
      own.sequence_ids = places_.sequence_ids.rows(0, own.tokens);
      own.sequence_offsets = places_.sequence_offsets.rows(0, own.tokens);
      gather_places(own.sequence_ids, batch_.sequence_ids, expert);
      gather_places(own.sequence_offsets, batch_.sequence_offsets, expert);
    }
    ctx_.pair_block_ends.clear();
    for (int64_t block = 0; block < blocks(ctx_); ++block) {
      const int64_t block_end = ends_[static_cast<size_t>(block * experts_.rule.experts + expert)];
      ctx_.pair_block_ends.push_back(block_end - begin(expert));
    }
    f(own);
    ctx_.pair_block_ends.clear();
  }

 private:
  int64_t end(int64_t expert) const {
    return ends_[ends_.size() - static_cast<size_t>(experts_.rule.experts - expert)];
  }
  /// Blocks of rows whose gradients are apart; 0: one has all.
  static int64_t blocks(const Context& ctx) { return ctx.rows != nullptr ? std::ssize(ctx.rows->block_ends()) : 0; }
  std::span<const int64_t> host_values(const Tensor& ends, Stream& stream) {
    const auto count = static_cast<size_t>(ends.numel());
    if (device_memory_is_host()) return {ends.as<int64_t>(), count};
    fetched_.resize(count);
    copy_to_host(fetched_.data(), ends.data, ends.bytes(), stream);
    stream.synchronize();
    return fetched_;
  }
  /// Words of rows: of 4 bytes, or of 8.
  void gather_places(const Tensor& to, const Tensor& from, int64_t expert) const {
    const int64_t words = static_cast<int64_t>(size_of(from.dtype) / sizeof(float));
    gather_pairs(Tensor(to.data, DType::f32, {to.dim(0), words}), Tensor(from.data, DType::f32, {from.dim(0), words}),
                 order(expert), experts_.rule.per_token, ctx_.stream);
  }

  const Experts& experts_;
  Context& ctx_;
  const Batch& batch_;
  Tensor order_;
  std::vector<int64_t> fetched_;  ///< from a device
  std::span<const int64_t> ends_;
  Batch places_;
};

int64_t Experts::scratch_bytes(DType compute, int64_t rows) const {
  const Mlp& mlp = mlps.front();
  const int64_t row = bytes_of(compute, rows, channels), wide_row = bytes_of(DType::f32, rows, channels);
  const int64_t activated = bytes_of(compute, rows, mlp.down.in);
  const int64_t sum = ExpertSum::scratch_bytes(share, rows * channels);
  const int64_t places = Pairs::scratch_bytes(*this, rows);
  const int64_t up = mlp.up.scratch_bytes(compute, compute, rows);
  const int64_t down = mlp.down.scratch_bytes(compute, DType::f32, rows);
  const int64_t of_shared = shared ? shared->scratch_bytes(compute, DType::f32, rows) : 0;
  const int64_t hidden = std::max(places + row + up, of_shared);
  const int64_t projected = sum + std::max(places + activated + wide_row + down, wide_row + of_shared);
  const int64_t experts =
      places + 2 * row + 2 * activated + wide_row +
      std::max(mlp.up.scratch_bytes(compute, compute, rows), mlp.down.scratch_bytes(compute, compute, rows));
  const int64_t gate = shared_gate ? wide_row + row + bytes_of(DType::f32, rows, 1) + bytes_of(compute, rows, 1) : 0;
  const int64_t router_rows = bytes_of(DType::f32, rows, rule.experts) + bytes_of(compute, rows, rule.experts);
  const int64_t backward = sum + ExpertSum::scratch_bytes(share, rows * rule.per_token) +
                           std::max({experts, wide_row + gate + of_shared, router_rows + wide_row});
  return std::max({hidden, projected, backward, bytes_of(DType::f32, 1, rule.experts)});
}

int64_t Experts::workspace_bytes(DType compute, int64_t rows, bool training) const {
  int64_t bytes = router.workspace_bytes(compute, DType::f32, rows, training);
  if (!down_biases.empty() && training) bytes = std::max(bytes, row_sum_workspace_bytes(rows, channels));
  bytes = std::max(bytes, mlps.front().up.workspace_bytes(compute, compute, rows, training));
  bytes = std::max(bytes, mlps.front().down.workspace_bytes(compute, DType::f32, rows, training));
  if (shared) bytes = std::max(bytes, shared->workspace_bytes(compute, DType::f32, rows, training));
  if (shared_gate) bytes = std::max(bytes, shared_gate->workspace_bytes(compute, DType::f32, rows, training));
  return bytes;
}

bool Experts::hidden_gradient(bool input) const {
  const auto trains = [](const Mlp& mlp) { return mlp.up.is_trained(); };
  return input || router.is_trained() || std::ranges::any_of(mlps, trains) || (shared && trains(shared->front())) ||
         (shared_gate && shared_gate->is_trained());
}

double Experts::product_flops(bool input_gradient) const {
  const Mlp& mlp = mlps.front();
  const bool hidden = hidden_gradient(input_gradient);
  const auto of_mlp = [&](const Mlp& m) { return m.up.product_flops(input_gradient) + m.down.product_flops(hidden); };
  double flops = router.product_flops(input_gradient) + static_cast<double>(rule.per_token) * of_mlp(mlp);
  if (shared) flops += shared->flops(of_mlp);
  return flops + (shared_gate ? shared_gate->product_flops(input_gradient) : 0);
}

void Experts::choose(Context& ctx, const Batch& batch, const Tensor& x, const ExpertsSaved& saved) const {
  const int64_t n = x.dim(0);
  const Routing rows{first_rows(saved.routing.scores, n), first_rows(saved.routing.log_sum, n),
                     first_rows(saved.routing.choices, n), first_rows(saved.routing.weights, n)};
  router.forward(ctx, batch, rows.scores, x);
  const bool counts = ctx.router != nullptr;
  Arena::Frame frame(ctx.arena);
  Tensor bias = selection_bias.weight(ctx);
  if (!bias.empty() && bias.dtype != DType::f32) {
    const Tensor wide = frame.take(DType::f32, {rule.experts});
    cast(wide, bias, ctx.stream);
    bias = wide;
  }
  route(rows, rule, bias, counts ? ctx.router->statistics(layer) : Tensor(), n - batch.padding, ctx.stream);
  std::span<const int64_t> ends(&n, 1);
  if (ctx.rows != nullptr && !ctx.rows->block_ends().empty()) ends = ctx.rows->block_ends();
  sort_pairs(saved.order, first_rows(saved.ends, std::ssize(ends) * rule.experts), rows.choices, ends, ctx.stream);
  if (!shared_gate) return;
  const Tensor gate = first_rows(saved.gate, n);
  shared_gate->forward(ctx, batch, gate, x);
  sigmoid(gate, gate, ctx.stream);
}

void Experts::forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const ExpertsSaved& saved,
                             const ExpertsSaved& kept, bool again) const {
  const RowwiseProducts rowwise(ctx);
  if (!again) choose(ctx, batch, x, saved);
  {
    Arena::Frame frame(ctx.arena);
    const Pairs pairs(*this, ctx, frame, batch, saved);
    const Tensor room = frame.take(x.dtype, {x.dim(0), channels});
    const bool reads = !again || kept.pairs.hidden.empty();
    for (int64_t i = 0; i < std::ssize(mlps); ++i) {
      const int64_t expert = first + i;
      if (pairs.count(expert) == 0) continue;
      const Tensor own = room.rows(0, pairs.count(expert));
      if (reads) gather_pairs(own, x, pairs.order(expert), rule.per_token, ctx.stream);
      pairs.enter(expert, [&](const Batch& rows) {
        mlps[static_cast<size_t>(i)].forward_hidden(ctx, rows, own, pairs.of(saved.pairs, expert),
                                                    pairs.of(kept.pairs, expert), again);
      });
    }
  }
  if (!shared) return;
  for (size_t i = 0; i < shared->blocks.size(); ++i) {
    shared->blocks[i].forward_hidden(ctx, batch, x, saved.shared[i], kept.shared[i], again);
  }
  if (!shared_gate || (again && !kept.shared_output.empty())) return;
  shared->project(ctx, batch, first_rows(saved.shared_output, x.dim(0)), saved.shared);
}

void Experts::project(Context& ctx, const Batch& batch, const Tensor& y, const ExpertsSaved& saved) const {
  const RowwiseProducts rowwise(ctx);
  const int64_t n = batch.tokens, experts_of_block = std::ssize(mlps) / (share ? share->count : 1);
  Arena::Frame frame(ctx.arena);
  ExpertSum sum(ctx, frame, share, n, channels);
  {
    Arena::Frame inner(ctx.arena);
    const Pairs pairs(*this, ctx, inner, batch, saved);
    const Tensor scaled_room = inner.take(saved.pairs.activated.dtype, {n, mlps.front().down.in});
    const Tensor term_room = inner.take(DType::f32, {n, channels});
    for (int64_t i = 0; i < std::ssize(mlps); ++i) {
      if (i % experts_of_block == 0) sum.begin_block();
      const int64_t expert = first + i, count = pairs.count(expert);
      const Tensor scaled = scaled_room.rows(0, count), term = term_room.rows(0, count);
      if (count > 0) {
        scale_pairs(scaled, pairs.of(saved.pairs.activated, expert), first_rows(saved.routing.weights, n),
                    pairs.order(expert), ctx.stream);
        pairs.enter(expert,
                    [&](const Batch& rows) { mlps[static_cast<size_t>(i)].down.forward(ctx, rows, term, scaled); });
        if (!down_biases.empty()) {
          add_pair_biases(term, down_biases[static_cast<size_t>(i)].weight(ctx), first_rows(saved.routing.weights, n),
                          pairs.order(expert), ctx.stream);
        }
        add_pairs(sum.term(), term, pairs.order(expert), rule.per_token, ctx.stream);
      }
      if ((i + 1) % experts_of_block == 0) sum.end_block();
    }
  }
  const Tensor whole = sum.finish();
  if (shared) {
    const Tensor term = frame.take(DType::f32, {n, channels});
    if (shared_gate) {
      scale_pairs(term, first_rows(saved.shared_output, n), first_rows(saved.gate, n), {}, ctx.stream);
    } else {
      shared->project(ctx, batch, term, saved.shared);
    }
    add_into(whole, term, false, ctx.stream);
  }
  cast(y, whole, ctx.stream);
}

void Experts::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                       const ExpertsSaved& saved) const {
  const RowwiseProducts rowwise(ctx);
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  std::optional<ExpertSum> dinput;
  if (!dx.empty()) dinput.emplace(ctx, frame, share, n, channels);
  ExpertSum dweights(ctx, frame, share, n, rule.per_token);
  if (selection_bias.is_trained()) {
    ctx.each_row_block(n, [&](int64_t, int64_t) {
      const Tensor gradient = selection_bias.gradient(ctx);
      fill_zero(gradient.data, gradient.bytes(), ctx.stream);
    });
  }
  backward_experts(ctx, batch, dinput ? &*dinput : nullptr, dweights, dy, x, saved);
  const Tensor dsum = dinput ? dinput->finish() : Tensor(), dchoices = dweights.finish();
  if (shared) backward_shared(ctx, batch, dsum, dy, x, saved);
  if (router.is_trained() || dinput) backward_router(ctx, batch, dsum, dchoices, x, saved);
  if (dinput) cast(dx, dsum, ctx.stream);
}

/// Parameters come in the reverse of their order: experts from the last one of a block to the first one.
void Experts::backward_experts(Context& ctx, const Batch& batch, ExpertSum* dinput, ExpertSum& dweights,
                               const Tensor& dy, const Tensor& x, const ExpertsSaved& saved) const {
  const int64_t n = batch.tokens, experts_of_block = std::ssize(mlps) / (share ? share->count : 1);
  const Tensor weights = first_rows(saved.routing.weights, n);
  const bool goes_on = hidden_gradient(dinput != nullptr);
  Arena::Frame frame(ctx.arena);
  const Pairs pairs(*this, ctx, frame, batch, saved);
  const Tensor dy_room = frame.take(dy.dtype, {n, channels}), x_room = frame.take(x.dtype, {n, channels});
  const Tensor scaled_room = frame.take(x.dtype, {n, mlps.front().down.in});
  const Tensor dscaled_room = frame.take(x.dtype, {n, mlps.front().down.in});
  const Tensor dx_room = frame.take(DType::f32, {n, channels});
  for (int64_t block = 0; block < (share ? share->count : 1); ++block) {
    if (dinput != nullptr) dinput->begin_block();
    dweights.begin_block();
    for (int64_t i = (block + 1) * experts_of_block - 1; i >= block * experts_of_block; --i) {
      const Mlp& mlp = mlps[static_cast<size_t>(i)];
      const int64_t expert = first + i, count = pairs.count(expert);
      const Tensor order = pairs.order(expert), own_dy = dy_room.rows(0, count), own_x = x_room.rows(0, count);
      const Tensor scaled = scaled_room.rows(0, count), dscaled = dscaled_room.rows(0, count);
      const Tensor own_dx = dinput != nullptr ? dx_room.rows(0, count) : Tensor();
      const MlpSaved own = pairs.of(saved.pairs, expert);
      gather_pairs(own_dy, dy, order, rule.per_token, ctx.stream);
      gather_pairs(own_x, x, order, rule.per_token, ctx.stream);
      scale_pairs(scaled, own.activated, weights, order, ctx.stream);
      pairs.enter(expert, [&](const Batch& rows) {
        mlp.down.backward(ctx, rows, goes_on ? dscaled : Tensor(), own_dy, scaled);
        if (!down_biases.empty()) backward_down_bias(ctx, i, own_dy, weights, order);
        if (!goes_on) return;
        scale_pairs_backward(dweights.term(), dscaled, own.activated, weights, order, ctx.stream);
        if (!down_biases.empty()) {
          const Tensor bias = down_biases[static_cast<size_t>(i)].weight(ctx);
          pair_bias_backward_weights(dweights.term(), own_dy, bias, order, ctx.stream);
        }
        activation_backward(own.hidden, dscaled, own.hidden, ctx.stream);
        mlp.up.backward(ctx, rows, own_dx, own.hidden, own_x);
      });
      if (dinput != nullptr) add_pairs(dinput->term(), own_dx, order, rule.per_token, ctx.stream);
    }
    dweights.end_block();
    if (dinput != nullptr) dinput->end_block();
  }
}

/// The bias of this rank's expert i, whose pairs these are.
void Experts::backward_down_bias(Context& ctx, int64_t i, const Tensor& dy, const Tensor& weights,
                                 const Tensor& order) const {
  const ParamRef& bias = down_biases[static_cast<size_t>(i)];
  if (!bias.is_trained()) return;
  ctx.each_row_block(dy.dim(0), [&](int64_t begin, int64_t count) {
    const Tensor gradient = bias.gradient(ctx);
    if (count > 0) {
      pair_bias_backward(gradient, dy.rows(begin, count), weights, order.rows(begin, count), bias.accumulates(ctx),
                         ctx.stream);
    } else if (!bias.accumulates(ctx)) {
      fill_zero(gradient.data, gradient.bytes(), ctx.stream);
    }
  });
}

void Experts::backward_shared(Context& ctx, const Batch& batch, const Tensor& dsum, const Tensor& dy, const Tensor& x,
                              const ExpertsSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const Tensor dx = dsum.empty() ? Tensor() : frame.take(DType::f32, {n, channels});
  const auto add = [&] {
    if (!dsum.empty()) add_into(dsum, dx, false, ctx.stream);
  };
  if (!shared_gate) {
    shared->backward(ctx, batch, dx, dy, x, saved.shared);
    return add();
  }
  const Tensor doutput = frame.take(DType::f32, {n, channels}), dgate = frame.take(DType::f32, {n, 1});
  const Tensor gate = first_rows(saved.gate, n);
  cast(doutput, dy, ctx.stream);
  scale_pairs_backward(dgate, doutput, first_rows(saved.shared_output, n), gate, {}, ctx.stream);
  sigmoid_backward(dgate, dgate, gate, ctx.stream);
  const Tensor rounded = frame.take(dy.dtype, {n, channels}), dlogit = frame.take(x.dtype, {n, 1});
  cast(rounded, doutput, ctx.stream);
  cast(dlogit, dgate, ctx.stream);
  shared->backward(ctx, batch, dx, rounded, x, saved.shared);
  add();
  shared_gate->backward(ctx, batch, dx, dlogit, x);
  add();
}

void Experts::backward_router(Context& ctx, const Batch& batch, const Tensor& dsum, const Tensor& dweights,
                              const Tensor& x, const ExpertsSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const Tensor dlogits = frame.take(DType::f32, {n, rule.experts});
  RoutingBackward args{dlogits,
                       first_rows(saved.routing.scores, n),
                       first_rows(saved.routing.log_sum, n),
                       first_rows(saved.routing.choices, n),
                       dweights,
                       {},
                       0,
                       n - batch.padding};
  if (ctx.router != nullptr) {
    args.balance = ctx.router->balance_slope();
    args.log_sum_square = ctx.router->log_sum_square_slope();
  }
  route_backward(args, rule, ctx.stream);
  const Tensor rounded = frame.take(x.dtype, {n, rule.experts});
  cast(rounded, dlogits, ctx.stream);
  const Tensor dx = dsum.empty() ? Tensor() : frame.take(DType::f32, {n, channels});
  router.backward(ctx, batch, dx, rounded, x);
  if (!dsum.empty()) add_into(dsum, dx, false, ctx.stream);
}

}  // namespace llmtrain
