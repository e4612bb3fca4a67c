#include "layers/adapted_linear.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/adapter.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {

namespace {

/// Largest sizes of a layer's adapters, and their ranks together.
struct Sizes {
  int64_t rows = 0, rank = 0, ranks = 0;
};

Sizes sizes_of(const Linear& layer) {
  Sizes s;
  for (const Adapter& adapter : layer.adapters) {
    s.rows = std::max(s.rows, adapter.rows);
    s.rank = std::max(s.rank, adapter.rank);
    s.ranks += adapter.rank;
  }
  return s;
}

/// The memory of a larger matrix, or of a vector, as a matrix of this shape.
Tensor matrix(const Tensor& room, int64_t rows, int64_t columns) {
  return Tensor(room.data, room.dtype, {rows, columns});
}
Tensor row(const Tensor& vector) { return matrix(vector, 1, vector.numel()); }

/// A pass whose temporaries are allocated.
struct PassShape {
  DType compute, output;
  int64_t rows;
  bool backward;
  bool masked;  ///< adapters' dropout is active
};

/// Temporaries. With dropout and magnitudes adapters run one after another, else all of a layer together.
struct Temporaries {
  Tensor t;           ///< [M, R]
  Tensor u;           ///< [N, R]
  Tensor du, dt;      ///< their gradients; dt is fp32
  Tensor dropped;     ///< [N, in]: drop(x) of one adapter; then the gradient of it
  Tensor ddropped;    ///< fp32 [N, in]: the gradient where that of x is fp32 and x is not
  Tensor part;        ///< [N, rank]: u or du of one adapter
  Tensor product;     ///< [N, M]: y without magnitudes, in the backward pass then a gradient
  Tensor dy;          ///< [N, rows]: y's gradient in the rows of one adapter
  Tensor norms;       ///< fp32 [M]: |W + T A|
  Tensor magnitudes;  ///< fp32 [M]
  Tensor rounded;     ///< [M]: norms in the compute dtype
  Tensor dots;        ///< fp32 [M]: gradient of the magnitudes
  Tensor bias;        ///< fp32 [M]

  /// Calls f(tensor, dtype, rows, columns) for each that the pass needs; columns are 0 for a vector.
  template <class F>
  void visit(const Linear& layer, const PassShape& p, const F& f) {
    const Sizes largest = sizes_of(layer);
    const bool one_by_one = p.masked && layer.has_magnitudes();
    const int64_t rank = one_by_one ? largest.rank : largest.ranks, out = one_by_one ? largest.rows : layer.out;
    f(t, p.compute, out, rank);
    f(u, p.compute, p.rows, rank);
    if (p.masked) f(dropped, p.compute, p.rows, layer.in);
    if (p.masked && !one_by_one) f(part, p.compute, p.rows, largest.rank);
    if (p.masked && p.backward && layer.sums_input_gradient && p.compute != DType::f32) {
      f(ddropped, DType::f32, p.rows, layer.in);
    }
    if (p.backward) f(du, p.compute, p.rows, rank);
    if (p.backward) f(dt, DType::f32, out, rank);
    if (!layer.has_magnitudes()) return;
    f(norms, DType::f32, out, 0);
    f(magnitudes, DType::f32, out, 0);
    if (p.compute != DType::f32) f(rounded, p.compute, out, 0);
    if (p.backward) {
      f(product, p.compute, p.rows, out);
      one_by_one ? f(dy, p.compute, p.rows, out) : f(dots, DType::f32, out, 0);
    } else if (one_by_one) {
      f(product, p.output, p.rows, out);
    } else if (layer.bias.exists() && p.compute != DType::f32) {  // the sum with the bias is rounded once
      if (p.output != DType::f32) f(product, DType::f32, p.rows, out);
      f(bias, DType::f32, out, 0);
    }
  }
};

class Pass {
 public:
  Pass(const Linear& layer, Context& ctx, const Batch& batch, const Tensor& x, DType output, bool backward)
      : layer_(layer),
        ctx_(ctx),
        batch_(batch),
        x_(x),
        w_(layer.weight.matrix(ctx)),
        a_(layer.a.weight(ctx)),
        masked_(ctx.training && layer.adapters.front().dropout > 0),
        frame_(ctx.arena) {
    temporaries_.visit(layer, {x.dtype, output, x.dim(0), backward, masked_},
                       [&](Tensor& t, DType dtype, int64_t rows, int64_t columns) {
                         t = columns == 0 ? frame_.take(dtype, {rows}) : frame_.take(dtype, {rows, columns});
                       });
    if (keeps_norms()) temporaries_.norms = ctx.cache->norms[layer.kept_norms];
  }

  void forward(const Tensor& y) {
    const Tensor bias = layer_.bias.weight(ctx_);
    if (one_by_one()) {
      product(y, x_, w_, bias, {});
      for (const Adapter& adapter : layer_.adapters) forward_one(adapter, y);
      return;
    }
    make_t();
    make_u();
    if (!layer_.has_magnitudes()) return product(y, x_, w_, bias, {temporaries_.u, temporaries_.t});
    make_factors();
    const Tensor whole = temporaries_.product.empty() ? y : temporaries_.product;
    if (!temporaries_.bias.empty()) cast(temporaries_.bias, bias, ctx_.stream);
    product(whole, x_, w_, Tensor(), {temporaries_.u, temporaries_.t});
    scale_columns(whole, whole, temporaries_.magnitudes, temporaries_.norms,
                  temporaries_.bias.empty() ? bias : temporaries_.bias, ctx_.stream);
    if (!temporaries_.product.empty()) cast(y, whole, ctx_.stream);
  }

  void backward(const Tensor& dx, const Tensor& dy) {
    if (one_by_one()) {
      if (!dx.empty()) linear_backward_input(dx, dy, w_, false, ctx_.stream);
      for (const Adapter& adapter : layer_.adapters) backward_one(adapter, dx, dy);
      return;
    }
    make_t();
    if (!masked_) make_u();
    const Tensor dproduct = layer_.has_magnitudes() ? backward_magnitudes(dy) : dy;
    linear_backward_input(temporaries_.du, dproduct, temporaries_.t, false, ctx_.stream);
    if (masked_) {
      if (!dx.empty()) linear_backward_input(dx, dproduct, w_, false, ctx_.stream);
      for (const Adapter& adapter : layer_.adapters) backward_masked(adapter, dx);
    } else {
      linear_backward_weight(layer_.a.gradient(ctx_), temporaries_.du, x_, layer_.a.accumulates(ctx_), ctx_.stream);
      if (!dx.empty()) linear_backward_input(dx, dproduct, w_, false, ctx_.stream, {temporaries_.du, a_});
    }
    linear_backward_weight(temporaries_.dt, dproduct, temporaries_.u, false, ctx_.stream);
    for (const Adapter& adapter : layer_.adapters) add_to_b(adapter, {adapter.first_row, adapter.first_rank});
  }

 private:
  bool one_by_one() const { return masked_ && layer_.has_magnitudes(); }
  bool keeps_norms() const { return layer_.has_magnitudes() && ctx_.cache != nullptr && !layer_.is_term(); }
  bool knows_norms() const { return keeps_norms() && ctx_.cache->norms_known[layer_.kept_norms] != 0; }
  void product(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, const LowRank& added) {
    linear_forward(y, x, w, bias, ctx_.stream, ctx_.role, added);
  }
  Dropout mask(const Adapter& adapter) const {
    return step_dropout(ctx_, adapter.dropout, RandomPurpose::adapter_dropout, adapter.dropout_name);
  }
  Tensor a_of(const Adapter& adapter) const { return a_.rows(adapter.first_rank, adapter.rank); }
  WeightMatrix w_of(const Adapter& adapter) const { return w_.rows(adapter.first_row, adapter.rows); }
  Tensor magnitude_gradient(const Adapter& adapter) { return adapter.magnitude.gradient(ctx_); }

  void make_t() {
    fill_zero(temporaries_.t.data, temporaries_.t.bytes(), ctx_.stream);
    for (const Adapter& adapter : layer_.adapters) {
      set_block(temporaries_.t, {adapter.first_row, adapter.first_rank}, adapter.b.weight(ctx_), adapter.scale,
                ctx_.stream);
    }
  }

  void make_u() {
    if (!masked_) return product(temporaries_.u, x_, a_, Tensor(), {});
    for (const Adapter& adapter : layer_.adapters) make_u_masked(adapter);
  }
  /// Fills an adapter's columns of u; `dropped` is its input.
  void make_u_masked(const Adapter& adapter) {
    const Tensor part = matrix(temporaries_.part, x_.dim(0), adapter.rank);
    dropout_rows(temporaries_.dropped, x_, batch_, mask(adapter), false, ctx_.stream);
    product(part, temporaries_.dropped, a_of(adapter), Tensor(), {});
    set_block(temporaries_.u, {0, adapter.first_rank}, part, 1, ctx_.stream);
  }

  /// Fills numerators and denominators of g for an adapter's rows. Norms are rounded as magnitudes are, so that g is 1
  /// where these are equal.
  void make_factors(const Adapter& adapter, int64_t at, const Tensor& t, const Tensor& a) {
    cast(temporaries_.magnitudes.rows(at, adapter.rows), adapter.magnitude.weight(ctx_), ctx_.stream);
    if (knows_norms()) return;
    const Tensor norms = temporaries_.norms.rows(at, adapter.rows);
    if (layer_.is_term()) {
      cast(norms, ctx_.row_norms.rows(adapter.first_row, adapter.rows), ctx_.stream);
    } else {
      row_norms(norms, w_of(adapter), t, a, ctx_.stream);
    }
    if (!temporaries_.rounded.empty()) {
      const Tensor rounded = temporaries_.rounded.rows(at, adapter.rows);
      cast(rounded, norms, ctx_.stream);
      cast(norms, rounded, ctx_.stream);
    }
  }
  /// Does so for all rows; those without an adapter have g = 1.
  void make_factors() {
    fill(temporaries_.magnitudes, 1, ctx_.stream);
    if (!knows_norms()) fill(temporaries_.norms, 1, ctx_.stream);
    for (const Adapter& adapter : layer_.adapters) {
      make_factors(adapter, adapter.first_row, temporaries_.t.rows(adapter.first_row, adapter.rows), a_);
    }
    if (keeps_norms()) ctx_.cache->norms_known[layer_.kept_norms] = 1;
  }

  void add_to_b(const Adapter& adapter, const BlockPlace& place) {
    get_block(adapter.b.gradient(ctx_), temporaries_.dt, place, adapter.scale, adapter.b.accumulates(ctx_),
              ctx_.stream);
  }

  /// Adds to the magnitudes' gradients; returns the gradient of x W^T + u T^T.
  Tensor backward_magnitudes(const Tensor& dy) {
    make_factors();
    product(temporaries_.product, x_, w_, Tensor(), {temporaries_.u, temporaries_.t});
    column_dots(temporaries_.dots, dy, temporaries_.product, temporaries_.norms, false, ctx_.stream);
    for (const Adapter& adapter : layer_.adapters) {
      get_block(row(magnitude_gradient(adapter)), row(temporaries_.dots), {0, adapter.first_row}, 1,
                adapter.magnitude.accumulates(ctx_), ctx_.stream);
    }
    scale_columns(temporaries_.product, dy, temporaries_.magnitudes, temporaries_.norms, Tensor(), ctx_.stream);
    return temporaries_.product;
  }

  /// Adds the gradients of A and x; fills the columns of u.
  void backward_masked(const Adapter& adapter, const Tensor& dx) {
    const Tensor part = matrix(temporaries_.part, x_.dim(0), adapter.rank);
    make_u_masked(adapter);
    get_block(part, temporaries_.du, {0, adapter.first_rank}, 1, false, ctx_.stream);
    backward_dropped(adapter, part, dx, {});
  }

  /// Gradients of A and, from those of u and W drop(x), of x.
  void backward_dropped(const Adapter& adapter, const Tensor& du, const Tensor& dx, const Tensor& dproduct) {
    const Tensor da = layer_.a.gradient(ctx_).rows(adapter.first_rank, adapter.rank);
    linear_backward_weight(da, du, temporaries_.dropped, layer_.a.accumulates(ctx_), ctx_.stream);
    if (dx.empty()) return;
    const Tensor& ddropped = dx.dtype == x_.dtype ? temporaries_.dropped : temporaries_.ddropped;
    if (dproduct.empty()) {
      linear_backward_input(ddropped, du, a_of(adapter), false, ctx_.stream);
    } else {
      linear_backward_input(ddropped, dproduct, w_of(adapter), false, ctx_.stream, {du, a_of(adapter)});
    }
    dropout_rows(dx, ddropped, batch_, mask(adapter), true, ctx_.stream);
  }

  /// One adapter's temporaries in the order of its own rows and ranks.
  struct AdapterTemporaries {
    Tensor t, u, product, norms, magnitudes;
  };
  AdapterTemporaries prepare(const Adapter& adapter) {
    const int64_t n = x_.dim(0);
    const AdapterTemporaries own{matrix(temporaries_.t, adapter.rows, adapter.rank),
                                 matrix(temporaries_.u, n, adapter.rank), matrix(temporaries_.product, n, adapter.rows),
                                 temporaries_.norms.rows(0, adapter.rows),
                                 temporaries_.magnitudes.rows(0, adapter.rows)};
    set_block(own.t, {}, adapter.b.weight(ctx_), adapter.scale, ctx_.stream);
    dropout_rows(temporaries_.dropped, x_, batch_, mask(adapter), false, ctx_.stream);
    product(own.u, temporaries_.dropped, a_of(adapter), Tensor(), {});
    make_factors(adapter, 0, own.t, a_of(adapter));
    return own;
  }
  /// Turns g into g - 1.
  void subtract_one(const AdapterTemporaries& own) {
    get_block(row(own.magnitudes), row(own.norms), {}, -1, true, ctx_.stream);
  }

  /// y += g u T^T + (g - 1) drop(x) W^T in the adapter's rows.
  void forward_one(const Adapter& adapter, const Tensor& y) {
    const AdapterTemporaries own = prepare(adapter);
    const auto add_scaled = [&] {
      scale_columns(own.product, own.product, own.magnitudes, own.norms, Tensor(), ctx_.stream);
      set_block(y, {0, adapter.first_row}, own.product, 1, ctx_.stream, true);
    };
    product(own.product, own.u, own.t, Tensor(), {});
    add_scaled();
    subtract_one(own);
    product(own.product, temporaries_.dropped, w_of(adapter), Tensor(), {});
    add_scaled();
  }

  void backward_one(const Adapter& adapter, const Tensor& dx, const Tensor& whole_dy) {
    const AdapterTemporaries own = prepare(adapter);
    const int64_t n = x_.dim(0);
    const Tensor dy = matrix(temporaries_.dy, n, adapter.rows), du = matrix(temporaries_.du, n, adapter.rank);
    get_block(dy, whole_dy, {0, adapter.first_row}, 1, false, ctx_.stream);
    product(own.product, temporaries_.dropped, w_of(adapter), Tensor(), {own.u, own.t});
    column_dots(magnitude_gradient(adapter), dy, own.product, own.norms, adapter.magnitude.accumulates(ctx_),
                ctx_.stream);
    scale_columns(own.product, dy, own.magnitudes, own.norms, Tensor(), ctx_.stream);
    linear_backward_input(du, own.product, own.t, false, ctx_.stream);
    temporaries_.dt = matrix(temporaries_.dt, adapter.rows, adapter.rank);
    linear_backward_weight(temporaries_.dt, own.product, own.u, false, ctx_.stream);
    add_to_b(adapter, {});
    subtract_one(own);
    scale_columns(own.product, dy, own.magnitudes, own.norms, Tensor(), ctx_.stream);
    backward_dropped(adapter, du, dx, own.product);
  }

  const Linear& layer_;
  Context& ctx_;
  const Batch& batch_;
  const Tensor& x_;
  const WeightMatrix w_;
  const Tensor a_;
  const bool masked_;
  Arena::Frame frame_;
  Temporaries temporaries_;
};

}  // namespace

void adapted_forward(const Linear& layer, Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
  Pass(layer, ctx, batch, x, y.dtype, false).forward(y);
}

void adapted_backward(const Linear& layer, Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy,
                      const Tensor& x) {
  Pass(layer, ctx, batch, x, dy.dtype, true).backward(dx, dy);
}

namespace {

/// Squares of the rows of W + T A in the columns of a block; T is scale B of the adapters.
void row_squares_of(const Linear& block, Context& ctx, const Tensor& squares) {
  Arena::Frame frame(ctx.arena);
  fill(squares, 1, ctx.stream);  // rows without an adapter, whose magnitudes are 1
  for (const Adapter& adapter : block.adapters) {
    const Tensor b = adapter.b.weight(ctx), t = frame.take(b.dtype, {adapter.rows, adapter.rank});
    set_block(t, {}, b, adapter.scale, ctx.stream);
    row_squares(squares.rows(adapter.first_row, adapter.rows),
                block.weight.matrix(ctx).rows(adapter.first_row, adapter.rows), t,
                block.a.weight(ctx).rows(adapter.first_rank, adapter.rank), ctx.stream);
  }
}

}  // namespace

WholeRowNorms::WholeRowNorms(Context& ctx, Arena::Frame& frame, std::span<const Linear* const> blocks) : ctx_(ctx) {
  const Linear& first = *blocks.front();
  if (!first.has_magnitudes() || !ctx.adapters) return;
  const KvCache* cache = ctx.cache;
  if (cache != nullptr && cache->norms_known[first.kept_norms] != 0) {
    ctx.row_norms = cache->norms[first.kept_norms];
    return;
  }
  BlockSum sum(*ctx.tensor, frame, first.out, 1);
  for (const Linear* block : blocks) {
    row_squares_of(*block, ctx, sum.next().reshaped({first.out}));
    sum.add(ctx.stream);
  }
  ctx.row_norms = sum.finish(ctx.stream).reshaped({first.out});
  roots_of_squares(ctx.row_norms, ctx.stream);
  if (cache == nullptr) return;
  cast(cache->norms[first.kept_norms], ctx.row_norms, ctx.stream);
  cache->norms_known[first.kept_norms] = 1;
}

int64_t WholeRowNorms::scratch_bytes(const TensorShare& share, const Linear& block, DType compute) {
  if (!block.has_magnitudes()) return 0;
  const Sizes sizes = sizes_of(block);
  return BlockSum::scratch_bytes(share, block.out) +
         Arena::aligned(sizes.rows * sizes.ranks * static_cast<int64_t>(size_of(compute)));
}

namespace {

/// Writes the norms, fp32 [M], of a layer's rows to this rank's shard of its magnitudes.
void write_magnitudes(const Linear& layer, const Tensor& norms, ParamStore& params, Stream& stream) {
  std::vector<float> values(static_cast<size_t>(layer.out));
  copy_to_host(values.data(), norms.data, norms.bytes(), stream);
  stream.synchronize();
  for (const Adapter& adapter : layer.adapters) {
    const auto [unit, param, trained] = adapter.magnitude;
    const int64_t offset = params.units()[unit].layout.offset(param);
    for (size_t segment = 0; segment < params.units()[unit].segments.size(); ++segment) {
      const ParamStore::Shard shard = params.shard(unit, segment);
      const int64_t begin = std::max(offset, shard.begin), end = std::min(offset + adapter.rows, shard.end);
      if (begin >= end) continue;
      params.write_state(unit, master_plane, begin, end - begin, values.data() + adapter.first_row + (begin - offset),
                         stream);
    }
  }
}

}  // namespace

void set_magnitudes(const Linear& layer, ParamStore& params, Stream& stream) {
  const ParamRef& weight = layer.weight;
  const DeviceBuffer buffer(layer.out * static_cast<int64_t>(sizeof(float)));
  const Tensor norms(buffer.data(), DType::f32, {layer.out});
  row_norms(norms, params.matrix(weight.unit, weight.param), Tensor(), Tensor(), stream);
  write_magnitudes(layer, norms, params, stream);
}

void set_magnitudes(std::span<const Linear* const> blocks, TensorSum& tensor, ParamStore& params, Stream& stream) {
  const int64_t out = blocks.front()->out, scratch = TensorSum::scratch_elements(tensor.share(), out);
  const DeviceBuffer buffer((std::ssize(blocks) * out + scratch) * static_cast<int64_t>(sizeof(float)));
  const Tensor all(buffer.data(), DType::f32, {std::ssize(blocks) * out + scratch});
  std::vector<Tensor> terms;
  for (const Linear* block : blocks) {
    terms.push_back(all.rows(std::ssize(terms) * out, out));
    row_squares(terms.back(), params.matrix(block->weight.unit, block->weight.param), Tensor(), Tensor(), stream);
  }
  tensor.add_terms(terms.front(), terms, all.rows(std::ssize(blocks) * out, scratch), stream);
  roots_of_squares(terms.front(), stream);
  write_magnitudes(*blocks.front(), terms.front(), params, stream);
}

int64_t adapter_scratch_bytes(const Linear& layer, DType compute, DType output, int64_t rows) {
  const bool dropout = layer.adapters.front().dropout > 0;
  int64_t most = 0;
  for (const auto& [backward, masked] : {std::pair(false, false), {false, dropout}, {true, dropout}}) {
    int64_t bytes = 0;
    const PassShape pass{compute, output, rows, backward, masked};
    Temporaries().visit(layer, pass, [&](Tensor&, DType dtype, int64_t r, int64_t columns) {
      bytes += Arena::aligned(r * std::max<int64_t>(columns, 1) * static_cast<int64_t>(size_of(dtype)));
    });
    most = std::max(most, bytes);
  }
  return most;
}

int64_t adapter_workspace_bytes(const Linear& layer, DType compute, DType output, int64_t rows, bool training) {
  const Sizes largest = sizes_of(layer);
  const auto& [in, out] = std::pair(layer.in, layer.out);
  const bool bias = layer.bias.exists(), magnitudes = layer.has_magnitudes();
  std::vector<LinearPass> passes = {
      {in, out, bias, compute, output, true, training, largest.ranks},
      {in, largest.ranks, false, compute, compute, true, training},
      {largest.ranks, out, false, compute, compute, false, training},
  };
  if (magnitudes) {
    passes.push_back({in, out, false, compute, bias ? DType::f32 : output, true, false, largest.ranks});
    passes.push_back({in, out, false, compute, compute, true, false, largest.ranks});
  }
  if (training && layer.adapters.front().dropout > 0) {
    for (const Adapter& adapter : layer.adapters) {
      passes.push_back({in, adapter.rank, false, compute, compute, true, true});
      if (!magnitudes) continue;
      passes.push_back({in, adapter.rows, false, compute, compute, true, true, adapter.rank});
      passes.push_back({in, adapter.rows, false, compute, output, true, false});
      passes.push_back({adapter.rank, adapter.rows, false, compute, output, true, true});
    }
  }
  int64_t bytes = magnitudes ? row_sum_workspace_bytes(1, 2 * out) : 0;
  if (magnitudes && training) bytes = std::max(bytes, row_sum_workspace_bytes(rows, out));
  for (LinearPass& pass : passes) {
    pass.wide_gradient = layer.sums_input_gradient;
    bytes = std::max(bytes, linear_workspace_bytes(pass, rows));
    if (!layer.quantized) continue;
    pass.quantized = layer.quantized;
    bytes = std::max(bytes, linear_workspace_bytes(pass, rows));
  }
  return bytes;
}

}  // namespace llmtrain
