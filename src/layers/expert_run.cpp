#include <algorithm>

#include "layers/experts.hpp"

namespace llmtrain {

namespace {

/// Calls f(i, first row, number of rows) for the experts of a run.
template <class F>
void each_of_run(const ExpertRun& run, const ExpertRows& rows, const F& f) {
  int64_t at = 0;
  for (int64_t n = 0; n < run.count; ++n) {
    const int64_t count = rows.of_expert[static_cast<size_t>(n)];
    f(run.first + n, at, count);
    at += count;
  }
}

}  // namespace

std::vector<LinearRows> Experts::rows_of(const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                                         Matrix matrix) const {
  std::vector<LinearRows> found;
  each_of_run(run, rows, [&](int64_t i, int64_t, int64_t count) {
    found.push_back({&(mlps[static_cast<size_t>(i)].*matrix), count, pairs.block_ends(i)});
  });
  return found;
}

void Experts::run_forward(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                          Matrix matrix, const Tensor& y, const Tensor& x) const {
  if (joins) return grouped_forward(ctx, rows_of(pairs, run, rows, matrix), y, x);
  (mlps[static_cast<size_t>(run.first)].*matrix).forward(ctx, rows.batch, y, x);
}

void Experts::run_hidden(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                         const MlpSaved& own, const MlpSaved& kept, bool again) const {
  if (rows.count == 0) return;
  const Mlp& any = mlps[static_cast<size_t>(run.first)];
  const Tensor hidden = first_rows(own.hidden, rows.count), activated = first_rows(own.activated, rows.count);
  if (any.runs_up(kept, again)) run_forward(ctx, pairs, run, rows, &Mlp::up, hidden, rows.inputs[0]);
  any.activate(ctx, activated, hidden, kept, again);
}

void Experts::run_down(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                       const Tensor& y, const Tensor& x) const {
  if (rows.count == 0) return;
  run_forward(ctx, pairs, run, rows, &Mlp::down, y, x);
  if (down_biases.empty()) return;
  each_of_run(run, rows, [&](int64_t i, int64_t at, int64_t count) {
    const auto [weights, order] = rows.pairs(at, count);
    const Tensor bias = down_biases[static_cast<size_t>(i)].weight(ctx);
    if (count > 0) add_pair_biases(y.rows(at, count), bias, weights, order, ctx.stream);
  });
}

/// Takes the gradient from the last matrices to the first ones.
void Experts::run_activation(Context& ctx, const ExpertRun& run, const ExpertRows& rows, const RunBackward& r) const {
  scale_pairs_backward(r.dweights, r.dscaled, r.activated, rows.weights, rows.order, ctx.stream);
  if (!down_biases.empty()) {
    each_of_run(run, rows, [&](int64_t i, int64_t at, int64_t count) {
      const auto [weights, order] = rows.pairs(at, count);
      const Tensor bias = down_biases[static_cast<size_t>(i)].weight(ctx);
      const Tensor dweights = order.empty() ? r.dweights.rows(at, count) : r.dweights;
      if (count > 0) pair_bias_backward_weights(dweights, r.dy.rows(at, count), bias, order, ctx.stream);
    });
  }
  activation_backward(r.hidden, r.dscaled, r.hidden, ctx.stream);
}

void Experts::run_backward(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                           const RunBackward& r) const {
  if (!joins) {
    const Mlp& mlp = mlps[static_cast<size_t>(run.first)];
    ctx.pair_block_ends = pairs.block_ends(run.first);
    mlp.down.backward(ctx, rows.batch, r.goes_on ? r.dscaled : Tensor(), r.dy, r.scaled);
    if (r.goes_on) {
      run_activation(ctx, run, rows, r);
      mlp.up.backward(ctx, rows.batch, r.dx, r.hidden, r.x);
    }
    ctx.pair_block_ends.clear();
  } else {
    if (r.goes_on) {
      grouped_backward_input(ctx, rows_of(pairs, run, rows, &Mlp::down), r.dscaled, r.dy);
      run_activation(ctx, run, rows, r);
      if (!r.dx.empty()) grouped_backward_input(ctx, rows_of(pairs, run, rows, &Mlp::up), r.dx, r.hidden);
    }
    run_parameters(ctx, pairs, run, rows, r);
  }
  if (!down_biases.empty()) backward_down_biases(ctx, pairs, run, rows, r.dy);
}

/// Gradients of a unit come from the last parameter to the first one, unless all of them have memory.
void Experts::run_parameters(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                             const RunBackward& r) const {
  const std::vector<LinearRows> downs = rows_of(pairs, run, rows, &Mlp::down),
                                ups = rows_of(pairs, run, rows, &Mlp::up);
  if (writes_gradients_together(ctx, downs) && writes_gradients_together(ctx, ups)) {
    grouped_backward_parameters(ctx, downs, r.dy, r.scaled);
    if (r.goes_on) grouped_backward_parameters(ctx, ups, r.hidden, r.x);
    return;
  }
  int64_t at = rows.count;
  for (size_t n = downs.size(); n-- > 0;) {
    const int64_t count = downs[n].rows;
    at -= count;
    grouped_backward_parameters(ctx, std::span(&downs[n], 1), r.dy.rows(at, count), r.scaled.rows(at, count));
    if (!r.goes_on) continue;
    grouped_backward_parameters(ctx, std::span(&ups[n], 1), r.hidden.rows(at, count), r.x.rows(at, count));
  }
}

/// The biases of the last matrices of a run's experts.
void Experts::backward_down_biases(Context& ctx, const ExpertPairs& pairs, const ExpertRun& run, const ExpertRows& rows,
                                   const Tensor& dy) const {
  each_of_run(run, rows, [&](int64_t i, int64_t at, int64_t of_expert) {
    const ParamRef& bias = down_biases[static_cast<size_t>(i)];
    if (!bias.is_trained()) return;
    ctx.pair_block_ends = pairs.block_ends(i);
    ctx.each_row_block(of_expert, [&](int64_t begin, int64_t count) {
      const Tensor gradient = bias.gradient(ctx);
      if (count == 0) {
        if (!bias.accumulates(ctx)) fill_zero(gradient.data, gradient.bytes(), ctx.stream);
        return;
      }
      const auto [weights, order] = rows.pairs(at + begin, count);
      pair_bias_backward(gradient, dy.rows(at + begin, count), weights, order, bias.accumulates(ctx), ctx.stream);
    });
    ctx.pair_block_ends.clear();
  });
}

}  // namespace llmtrain
