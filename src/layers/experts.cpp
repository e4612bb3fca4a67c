#include "layers/experts.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/workspace.hpp"
#include "layers/router_losses.hpp"
#include "layers/sharing/expert_exchange.hpp"

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
      clear();
    }
  }
  static int64_t scratch_bytes(const std::optional<TensorShare>& share, int64_t elements) {
    return share ? BlockSum::scratch_bytes(*share, elements) : Arena::aligned(4 * elements);
  }

  void begin_block() {
    if (!blocks_) return;
    term_ = blocks_->next();
    clear();
  }
  /// The sum to which the experts of the block add.
  const Tensor& term() const { return term_; }
  void end_block() {
    if (blocks_) blocks_->add(ctx_.stream);
  }
  Tensor finish() { return blocks_ ? blocks_->finish(ctx_.stream) : term_; }

 private:
  void clear() { fill_zero(term_.data, term_.bytes(), ctx_.stream); }

  Context& ctx_;
  std::optional<BlockSum> blocks_;
  Tensor term_;
};

/// The largest number that bytes(mlp) gives: adapters of experts may differ.
template <class F>
int64_t Experts::largest(const F& bytes) const {
  int64_t most = 0;
  for (const Mlp& mlp : mlps) most = std::max(most, bytes(mlp));
  return most;
}

PairShape Experts::pair_shape() const {
  const auto drops = [](const Linear& linear) {
    return !linear.adapters.empty() && linear.adapters.front().dropout > 0;
  };
  const bool dropout = std::ranges::any_of(mlps, [&](const Mlp& mlp) { return drops(mlp.up) || drops(mlp.down); });
  const Mlp& any = mlps.front();
  const int64_t of_block = share ? rule.experts / share->blocks : rule.experts;
  return {rule.experts, rule.per_token, first,  of_block, std::ssize(mlps), channels,
          any.up.out,   any.down.in,    groups, ranks,    dropout};
}

int64_t Experts::scratch_bytes(DType compute, int64_t rows) const {
  const Mlp& mlp = mlps.front();
  const int64_t most = ranks * rows;  // of an expert
  const int64_t row = bytes_of(compute, rows, channels), wide_row = bytes_of(DType::f32, rows, channels);
  const int64_t activated = bytes_of(compute, most, mlp.down.in), wide_rows = bytes_of(DType::f32, most, channels);
  const int64_t hidden = ranks == 1 ? 0 : bytes_of(compute, most, mlp.up.out) + activated;
  const int64_t sum = ExpertSum::scratch_bytes(share, rows * channels);
  const auto pairs = [&](int64_t inputs) { return ExpertPairs::scratch_bytes(pair_shape(), compute, rows, inputs); };
  const int64_t up = largest([&](const Mlp& m) { return m.up.scratch_bytes(compute, compute, most); });
  const auto down = [&](DType output) {
    return largest([&](const Mlp& m) { return m.down.scratch_bytes(compute, output, most); });
  };
  const int64_t of_shared = shared ? shared->scratch_bytes(compute, DType::f32, rows) : 0;
  const int64_t forward = pairs(1) + hidden + activated + wide_rows + std::max(up, down(DType::f32));
  const int64_t projected = sum + std::max(forward, wide_row + of_shared);
  const int64_t experts = pairs(2) + hidden + 2 * activated + wide_rows + std::max(up, down(compute));
  const int64_t gate = shared_gate ? wide_row + row + bytes_of(DType::f32, rows, 1) + bytes_of(compute, rows, 1) : 0;
  const int64_t router_rows = bytes_of(DType::f32, rows, rule.experts) + bytes_of(compute, rows, rule.experts);
  const int64_t backward = sum + ExpertSum::scratch_bytes(share, rows * rule.per_token) +
                           std::max({experts, wide_row + gate + of_shared, router_rows + wide_row});
  return std::max({of_shared, projected, backward, bytes_of(DType::f32, 1, rule.experts)});
}

int64_t Experts::workspace_bytes(DType compute, int64_t rows, bool training) const {
  const int64_t most = ranks * rows;
  int64_t bytes = router.workspace_bytes(compute, DType::f32, rows, training);
  if (!down_biases.empty() && training) bytes = std::max(bytes, row_sum_workspace_bytes(most, channels));
  bytes = std::max(bytes, largest([&](const Mlp& m) {
                     return std::max(m.up.workspace_bytes(compute, compute, most, training),
                                     m.down.workspace_bytes(compute, DType::f32, most, training));
                   }));
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
  const bool hidden = hidden_gradient(input_gradient);
  const auto of_mlp = [&](const Mlp& m) { return m.up.product_flops(input_gradient) + m.down.product_flops(hidden); };
  double of_all = 0;
  for (const Mlp& mlp : mlps) of_all += of_mlp(mlp);
  double flops = router.product_flops(input_gradient) +
                 static_cast<double>(rule.per_token) * of_all / static_cast<double>(mlps.size());
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
  const int64_t begin = ctx.experts != nullptr ? ctx.experts->rank() * groups * rule.experts : 0;
  const Tensor own_ends = saved.ends.rows(begin, std::ssize(ends) * rule.experts);
  sort_pairs(saved.order, own_ends, rows.choices, ends, ctx.stream);
  if (ctx.experts != nullptr) share_ends(ctx, saved, std::ssize(ends));
  if (!shared_gate) return;
  const Tensor gate = first_rows(saved.gate, n);
  shared_gate->forward(ctx, batch, gate, x);
  sigmoid(gate, gate, ctx.stream);
}

/// Gathers the ends of all ranks' pairs; this rank has set those of `blocks` blocks, or of none.
void Experts::share_ends(Context& ctx, const ExpertsSaved& saved, int64_t blocks) const {
  const Tensor all = saved.ends.reshaped({ctx.experts->ranks(), groups * rule.experts});
  const Tensor own = all.rows(ctx.experts->rank(), 1).reshaped({groups, rule.experts});
  if (blocks == 0) fill_zero(own.data, own.bytes(), ctx.stream);
  for (int64_t block = std::max<int64_t>(blocks, 1); block < groups; ++block) {
    const Tensor next = own.rows(block, 1);
    copy_on_device(next.data, own.rows(block - 1, 1).data, next.bytes(), ctx.stream);
  }
  ctx.experts->gather(all, ctx.stream);
}

template <class F>
void Experts::each_unit(Context& ctx, bool backward, const F& f) const {
  if (units.empty()) return f(0);
  const int64_t count = std::ssize(units);
  for (int64_t step = 0; step < count; ++step) {
    const int64_t i = backward ? count - 1 - step : step;
    const UnitGroup& own = units[static_cast<size_t>(i)];
    own.acquire(ctx.params);
    if (step + 1 < count) units[static_cast<size_t>(backward ? i - 1 : i + 1)].prefetch(ctx.params);
    f(i);
    own.release(ctx.params);
    if (backward) own.reduce(ctx.params);
  }
}

/// A sum over blocks has the same bits in either direction: sums of two numbers do not depend on their order.
template <class F>
void Experts::each_run(Context& ctx, const ExpertPairs& pairs, bool backward, const F& f) const {
  const int64_t of_block = std::ssize(mlps) / blocks(), longest = joins ? of_block : 1;
  const int64_t of_unit = std::ssize(mlps) / std::max<int64_t>(std::ssize(units), 1);
  each_unit(ctx, backward, [&](int64_t unit) {
    for (int64_t done = 0; done < of_unit;) {
      const int64_t i = unit * of_unit + (backward ? of_unit - 1 - done : done), in_block = i % of_block;
      const int64_t rest = std::min(of_unit - done, backward ? in_block + 1 : of_block - in_block);
      const int64_t count = pairs.run_length(i, std::min(rest, longest), backward);
      const ExpertRun run{backward ? i - count + 1 : i, count};
      const bool at_front = run.first % of_block == 0, at_back = (run.first + count) % of_block == 0;
      f(run, backward ? at_back : at_front, backward ? at_front : at_back);
      done += count;
    }
  });
}

void Experts::prefetch(ParamStore& params, bool backward) const {
  if (!units.empty()) (backward ? units.back() : units.front()).prefetch(params);
}

void Experts::forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const ExpertsSaved& saved,
                             const ExpertsSaved& kept, bool again) const {
  const RowwiseProducts rowwise(ctx);
  if (!again) choose(ctx, batch, x, saved);
  if (!shared) return;
  for (size_t i = 0; i < shared->blocks.size(); ++i) {
    shared->blocks[i].forward_hidden(ctx, batch, x, saved.shared[i], kept.shared[i], again);
  }
  if (!shared_gate || (again && !kept.shared_output.empty())) return;
  shared->project(ctx, batch, first_rows(saved.shared_output, x.dim(0)), saved.shared);
}

void Experts::forward_experts(Context& ctx, const Batch& batch, ExpertSum& sum, const Tensor& x,
                              const ExpertsSaved& saved, const ExpertsSaved& kept) const {
  Arena::Frame frame(ctx.arena);
  const Mlp& any = mlps.front();
  ExpertPairs pairs(pair_shape(), ctx, frame, batch, saved.of_pairs(), std::span(&x, 1));
  const int64_t most = pairs.max_rows();
  const Tensor scaled_buffer = frame.take(x.dtype, {most, any.down.in});
  const Tensor term_buffer = frame.take(DType::f32, {most, channels});
  const MlpSaved buffers = pairs.take_hidden(frame, x.dtype);
  const bool adds = !pairs.shares();
  each_run(ctx, pairs, false, [&](const ExpertRun& run, bool begins, bool ends) {
    if (begins && adds) sum.begin_block();
    const ExpertRows rows = pairs.open(run, term_buffer);
    const Tensor scaled = scaled_buffer.rows(0, rows.count), term = term_buffer.rows(0, rows.count);
    const MlpSaved own = pairs.of(saved.pairs, run, buffers);
    run_hidden(ctx, pairs, run, rows, own, pairs.of(kept.pairs, run, {}), false);
    if (rows.count > 0)
      scale_pairs(scaled, first_rows(own.activated, rows.count), rows.weights, rows.order, ctx.stream);
    run_down(ctx, pairs, run, rows, term, scaled);
    pairs.add(sum.term(), term, run, true, false);
    if (ends && adds) sum.end_block();
  });
  for (int64_t block = 0; block < blocks() && pairs.has_returned(); ++block) {
    sum.begin_block();
    pairs.add_returned(block, sum.term(), {}, true);
    sum.end_block();
  }
}

void Experts::project(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const ExpertsSaved& saved,
                      const ExpertsSaved& kept) const {
  const RowwiseProducts rowwise(ctx);
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  ExpertSum sum(ctx, frame, share, n, channels);
  forward_experts(ctx, batch, sum, x, saved, kept);
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

void Experts::forward_idle(Context& ctx, DType compute, const ExpertsSaved& saved) const {
  if (ctx.experts == nullptr) return each_unit(ctx, false, [](int64_t) {});
  const RowwiseProducts rowwise(ctx);
  share_ends(ctx, saved, 0);
  Arena::Frame frame(ctx.arena);
  ExpertSum sum(ctx, frame, share, 0, channels);
  forward_experts(ctx, {}, sum, frame.take(compute, {0, channels}), saved, {});
}

void Experts::backward_idle(Context& ctx, DType compute, const ExpertsSaved& saved, bool input_gradient) const {
  if (ctx.experts == nullptr || ctx.params.reducer().groups_here() == 0) {
    return each_unit(ctx, true, [&](int64_t i) {
      if (!units.empty()) units[static_cast<size_t>(i)].join_reductions(ctx.params);
    });
  }
  const RowwiseProducts rowwise(ctx);
  Arena::Frame frame(ctx.arena);
  std::optional<ExpertSum> dinput;
  if (input_gradient) dinput.emplace(ctx, frame, share, 0, channels);
  ExpertSum dweights(ctx, frame, share, 0, rule.per_token);
  const Tensor none = frame.take(compute, {0, channels});
  backward_experts(ctx, {}, dinput ? &*dinput : nullptr, dweights, none, none, saved, {});
}

void Experts::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                       const ExpertsSaved& saved, const ExpertsSaved& kept) const {
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
  backward_experts(ctx, batch, dinput ? &*dinput : nullptr, dweights, dy, x, saved, kept);
  const Tensor dsum = dinput ? dinput->finish() : Tensor(), dchoices = dweights.finish();
  if (shared) backward_shared(ctx, batch, dsum, dy, x, saved);
  if (router.is_trained() || dinput) backward_router(ctx, batch, dsum, dchoices, x, saved);
  if (dinput) cast(dx, dsum, ctx.stream);
}

/// Parameters come in the reverse of their order: experts from the last one of a block to the first one.
void Experts::backward_experts(Context& ctx, const Batch& batch, ExpertSum* dinput, ExpertSum& dweights,
                               const Tensor& dy, const Tensor& x, const ExpertsSaved& saved,
                               const ExpertsSaved& kept) const {
  const bool goes_on = hidden_gradient(dinput != nullptr);
  Arena::Frame frame(ctx.arena);
  const std::array inputs = {x, dy};
  ExpertPairs pairs(pair_shape(), ctx, frame, batch, saved.of_pairs(), inputs);
  const int64_t most = pairs.max_rows(), width = mlps.front().down.in;
  const Tensor scaled_buffer = frame.take(x.dtype, {most, width}), dscaled_buffer = frame.take(x.dtype, {most, width});
  const Tensor dx_buffer = frame.take(DType::f32, {most, channels});
  const MlpSaved buffers = pairs.take_hidden(frame, x.dtype);
  const auto begin_block = [&] {
    dweights.begin_block();
    if (dinput != nullptr) dinput->begin_block();
  };
  const auto end_block = [&] {
    dweights.end_block();
    if (dinput != nullptr) dinput->end_block();
  };
  const bool adds = !pairs.shares();
  each_run(ctx, pairs, true, [&](const ExpertRun& run, bool begins, bool ends) {
    if (begins && adds) begin_block();
    const ExpertRows rows = pairs.open(run, dx_buffer);
    const MlpSaved own = pairs.of(saved.pairs, run, buffers);
    const RunBackward r{.x = rows.inputs[0],
                        .dy = rows.inputs[1],
                        .hidden = first_rows(own.hidden, rows.count),
                        .activated = first_rows(own.activated, rows.count),
                        .scaled = scaled_buffer.rows(0, rows.count),
                        .goes_on = goes_on,
                        .dscaled = dscaled_buffer.rows(0, rows.count),
                        .dx = dinput != nullptr ? dx_buffer.rows(0, rows.count) : Tensor(),
                        .dweights = pairs.weight_gradients(dweights.term(), rows.count)};
    run_hidden(ctx, pairs, run, rows, own, pairs.of(kept.pairs, run, {}), true);
    scale_pairs(r.scaled, r.activated, rows.weights, rows.order, ctx.stream);
    run_backward(ctx, pairs, run, rows, r);
    pairs.add(dinput != nullptr ? dinput->term() : Tensor(), r.dx, run, false, goes_on);
    if (ends && adds) end_block();
  });
  for (int64_t block = 0; block < blocks() && pairs.has_returned(); ++block) {
    begin_block();
    const Tensor sum = dinput != nullptr ? dinput->term() : Tensor();
    pairs.add_returned(block, sum, goes_on ? dweights.term() : Tensor(), false);
    end_block();
  }
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
