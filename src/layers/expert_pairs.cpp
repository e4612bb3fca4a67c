#include "layers/expert_pairs.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/elementwise.hpp"

namespace llmtrain {

namespace {

/// Rows of any dtype as rows of 4-byte words.
Tensor words(const Tensor& t) {
  const int64_t columns = t.rank == 1 ? 1 : t.dim(1);
  return {t.data, DType::f32, {t.dim(0), columns * static_cast<int64_t>(size_of(t.dtype)) / 4}};
}

int64_t bytes_of(DType dtype, int64_t rows, int64_t columns) {
  return Arena::aligned(rows * columns * static_cast<int64_t>(size_of(dtype)));
}

}  // namespace

ExpertPairs::ExpertPairs(const PairShape& shape, Context& ctx, Arena::Frame& frame, const Batch& batch,
                         const PairTensors& tensors, std::span<const Tensor> inputs)
    : shape_(shape),
      ctx_(ctx),
      exchange_(ctx.experts),
      order_(first_rows(tensors.order, batch.tokens * shape.per_token)),
      blocks_(shares() ? shape.groups
                       : std::max<int64_t>(ctx.rows != nullptr ? std::ssize(ctx.rows->block_ends()) : 0, 1)),
      weights_(first_rows(tensors.weights, batch.tokens)) {
  fetch_ends(tensors.ends);
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < ranks(); ++r) counts.push_back(ends(r).end(shape.experts - 1));
  max_rows_ = ranks() * (*std::ranges::max_element(counts) / shape.per_token);
  if (shares() && exchange_->relays()) {
    const auto pairs = [this](int64_t from, int64_t to, int64_t i) {
      const Ends of_rank = ends(from);
      return ExpertRelay::Range{of_rank.begin(number(i, to)), of_rank.count(number(i, to))};
    };
    relay_.emplace(*exchange_, frame, order_, counts, shape.per_token, pairs, ctx.stream);
  }
  batch_inputs_.assign(inputs.begin(), inputs.end());
  for (const Tensor& x : inputs) {
    inputs_.push_back(shares() ? sorted(frame, x, shape.per_token) : x);
    row_buffers_.push_back(frame.take(x.dtype, {max_rows_, x.dim(1)}));
  }
  if (ctx.training && shape.dropout) {
    ids_ = batch.sequence_ids;
    offsets_ = batch.sequence_offsets;
    if (shares()) {
      ids_ = sorted(frame, batch.tokens > 0 ? ids_ : frame.take(DType::i64, {0}), shape.per_token);
      offsets_ = sorted(frame, batch.tokens > 0 ? offsets_ : frame.take(DType::i32, {0}), shape.per_token);
    }
    own_ids_ = frame.take(DType::i64, {max_rows_});
    own_offsets_ = frame.take(DType::i32, {max_rows_});
  }
  if (!shares()) return;
  const int64_t pairs = order_.dim(0);
  weights_ = sorted(frame, Tensor(weights_.data, DType::f32, {pairs, 1}), 1);
  own_weights_ = frame.take(DType::f32, {max_rows_, 1});
  dweights_ = frame.take(DType::f32, {max_rows_, 1});
  returned_ = frame.take(DType::f32, {pairs, shape.channels});
  returned_weights_ = frame.take(DType::f32, {pairs, 1});
}

int64_t ExpertPairs::scratch_bytes(const PairShape& shape, DType compute, int64_t rows, int64_t inputs) {
  const int64_t most = shape.ranks * rows, pairs = rows * shape.per_token;
  int64_t bytes = inputs * bytes_of(compute, most, shape.channels);
  if (shape.dropout) bytes += bytes_of(DType::i64, most, 1) + bytes_of(DType::i32, most, 1);
  if (shape.ranks == 1) return bytes;
  bytes += ExpertRelay::scratch_bytes(shape.ranks, rows, shape.per_token);
  bytes += inputs * bytes_of(compute, pairs, shape.channels) + bytes_of(DType::f32, pairs, shape.channels);
  bytes += 2 * bytes_of(DType::f32, pairs, 1) + 2 * bytes_of(DType::f32, most, 1);
  if (shape.dropout) bytes += bytes_of(DType::i64, pairs, 1) + bytes_of(DType::i32, pairs, 1);
  return bytes;
}

/// The rows of a tensor for each pair, in the order of the pairs.
Tensor ExpertPairs::sorted(Arena::Frame& frame, const Tensor& x, int64_t k) const {
  const Tensor all =
      x.rank == 1 ? frame.take(x.dtype, {order_.dim(0)}) : frame.take(x.dtype, {order_.dim(0), x.dim(1)});
  if (order_.dim(0) > 0 && size_of(x.dtype) == 2) gather_pairs(all, x, order_, k, ctx_.stream);
  if (order_.dim(0) > 0 && size_of(x.dtype) > 2) gather_pairs(words(all), words(x), order_, k, ctx_.stream);
  return all;
}

void ExpertPairs::fetch_ends(const Tensor& ends) {
  const Tensor all = first_rows(ends, ranks() * blocks_ * shape_.experts);
  const auto count = static_cast<size_t>(all.numel());
  if (device_memory_is_host()) {
    ends_ = {all.as<int64_t>(), count};
    return;
  }
  fetched_.resize(count);
  copy_to_host(fetched_.data(), all.data, all.bytes(), ctx_.stream);
  ctx_.stream.synchronize();
  ends_ = fetched_;
}

ExpertPairs::Ends ExpertPairs::ends(int64_t rank) const {
  const auto size = static_cast<size_t>(blocks_ * shape_.experts);
  return {ends_.subspan(static_cast<size_t>(rank) * size, size), shape_.experts};
}

int64_t ExpertPairs::rows_of(int64_t i, int64_t rank) const {
  int64_t count = 0;
  for (int64_t r = 0; r < ranks(); ++r) count += ends(r).count(number(i, rank));
  return count;
}

int64_t ExpertPairs::run_length(int64_t i, int64_t most, bool downwards) const {
  std::vector<int64_t> rows(static_cast<size_t>(ranks()));
  for (int64_t length = 0; length < most; ++length) {
    for (int64_t r = 0; r < ranks(); ++r) {
      int64_t& count = rows[static_cast<size_t>(r)];
      count += rows_of(downwards ? i - length : i + length, r);
      if (count > max_rows_ && length > 0) return length;
    }
    const ExpertRun run{downwards ? i - length : i, length + 1};
    if (relay_ && length > 0 && !relay_->fits(run, max_rows_)) return length;
  }
  return most;
}

std::vector<int64_t> ExpertPairs::block_ends(int64_t i) const {
  if (!shares() && (ctx_.rows == nullptr || ctx_.rows->block_ends().empty())) return {};
  std::vector<int64_t> found;
  const int64_t most = shares() && ctx_.training ? ctx_.params.reducer().groups_here() : ranks() * blocks_;
  int64_t before = 0;
  for (int64_t r = 0; r < ranks(); ++r) {
    const Ends of_rank = ends(r);
    const int64_t expert = number(i), begin = of_rank.begin(expert);
    for (int64_t block = 0; block < blocks_ && std::ssize(found) < most; ++block) {
      found.push_back(before + of_rank.of[static_cast<size_t>(block * shape_.experts + expert)] - begin);
    }
    before += of_rank.count(expert);
  }
  return found;
}

/// Moves rows of pairs to the experts of a run of this rank, and of others to theirs, or back.
void ExpertPairs::move(const Tensor& pairs, const Tensor& rows, const ExpertRun& run, Way way) {
  const bool to_expert = way != Way::back;
  const NodeGrid grid = exchange_->grid();
  int64_t at = 0;
  for (int64_t i = run.first; i < run.first + run.count; ++i) {
    for (int64_t r = 0; r < ranks(); ++r) {
      const int64_t theirs = number(i, r), count = ends(r).count(number(i));
      const Tensor there = pairs.rows(own().begin(theirs), own().count(theirs)), here = rows.rows(at, count);
      at += count;
      if (r == rank()) {
        const Tensor &to = to_expert ? here : there, &from = to_expert ? there : here;
        if (count > 0) copy_on_device(to.data, from.data, to.bytes(), ctx_.stream);
        continue;
      }
      if (way == Way::to_experts_here && grid.node_of(r) != grid.node_of(rank())) continue;
      exchange_->send(to_expert ? there : here, r);
      exchange_->receive(to_expert ? here : there, r);
    }
  }
}

Tensor ExpertPairs::of_pairs(const Tensor& pairs, const ExpertRun& run) const {
  const int64_t begin = own().begin(number(run.first)), before = own().begin(shape_.first);
  return pairs.rows(begin - before, own().end(number(run.first + run.count - 1)) - begin);
}

/// Moves rows of the batch from and to other nodes.
void ExpertPairs::relay(const Tensor& x, const Tensor& rows, const ExpertRun& run, const Tensor& scratch) {
  std::vector<int64_t> begins;  // of the rows of each expert and rank
  int64_t at = 0;
  for (int64_t i = run.first; i < run.first + run.count; ++i) {
    for (int64_t r = 0; r < ranks(); ++r) {
      begins.push_back(at);
      at += ends(r).count(number(i));
    }
  }
  const auto place = [&](int64_t i, int64_t from) {
    return rows.rows(begins[static_cast<size_t>((i - run.first) * ranks() + from)], ends(from).count(number(i)));
  };
  relay_->move(x, run, place, Tensor(scratch.data, x.dtype, {max_rows_, x.dim(1)}));
}

ExpertRows ExpertPairs::open(const ExpertRun& run, const Tensor& scratch) {
  const int64_t k = shape_.per_token;
  ExpertRows rows;
  for (int64_t i = run.first; i < run.first + run.count; ++i) rows.of_expert.push_back(rows_of(i));
  rows.count = std::accumulate(rows.of_expert.begin(), rows.of_expert.end(), int64_t{0});
  rows.batch.tokens = rows.count;
  if (!own_ids_.empty()) {
    rows.batch.sequence_ids = own_ids_.rows(0, rows.count);
    rows.batch.sequence_offsets = own_offsets_.rows(0, rows.count);
  }
  for (size_t n = 0; n < inputs_.size(); ++n) rows.inputs[n] = row_buffers_[n].rows(0, rows.count);
  rows.weights = weights_;
  if (shares()) {
    const Way way = relay_ ? Way::to_experts_here : Way::to_experts;
    for (size_t n = 0; n < inputs_.size(); ++n) move(inputs_[n], rows.inputs[n], run, way);
    if (!own_ids_.empty()) {
      move(ids_, rows.batch.sequence_ids, run, Way::to_experts);
      move(offsets_, rows.batch.sequence_offsets, run, Way::to_experts);
    }
    rows.weights = own_weights_.rows(0, rows.count);
    move(weights_, rows.weights, run, Way::to_experts);
    if (!relay_) exchange_->exchange(ctx_.stream);
    for (size_t n = 0; n < inputs_.size() && relay_; ++n) relay(batch_inputs_[n], rows.inputs[n], run, scratch);
    return rows;
  }
  const int64_t begin = own().begin(number(run.first));
  rows.order = order_.rows(begin, rows.count);
  if (rows.count == 0) return rows;
  for (size_t n = 0; n < inputs_.size(); ++n) gather_pairs(rows.inputs[n], inputs_[n], rows.order, k, ctx_.stream);
  if (!own_ids_.empty()) {
    gather_pairs(words(rows.batch.sequence_ids), words(ids_), rows.order, k, ctx_.stream);
    gather_pairs(words(rows.batch.sequence_offsets), words(offsets_), rows.order, k, ctx_.stream);
  }
  return rows;
}

MlpSaved ExpertPairs::take_hidden(Arena::Frame& frame, DType compute) const {
  if (!shares()) return {};
  return {frame.take(compute, {max_rows_, shape_.hidden}), frame.take(compute, {max_rows_, shape_.activated})};
}

MlpSaved ExpertPairs::of(const MlpSaved& saved, const ExpertRun& run, const MlpSaved& buffers) const {
  if (shares()) return buffers;
  const auto part = [&](const Tensor& pairs) { return pairs.empty() ? pairs : of_pairs(pairs, run); };
  return {part(saved.hidden), part(saved.activated)};
}

Tensor ExpertPairs::weight_gradients(const Tensor& dweights, int64_t count) const {
  return shares() ? dweights_.rows(0, count) : dweights;
}

void ExpertPairs::add(const Tensor& sum, const Tensor& rows, const ExpertRun& run, bool ascending, bool weights) {
  if (shares()) {
    if (weights) move(returned_weights_, dweights_, run, Way::back);
    if (!rows.empty()) move(returned_, rows, run, Way::back);
    if (weights || !rows.empty()) exchange_->exchange(ctx_.stream);
    return;
  }
  const int64_t begin = own().begin(number(run.first));
  for (int64_t n = 0; n < run.count && !rows.empty(); ++n) {
    const int64_t expert = number(run.first + (ascending ? n : run.count - 1 - n)), count = own().count(expert);
    if (count == 0) continue;
    add_pairs(sum, rows.rows(own().begin(expert) - begin, count), order(expert), shape_.per_token, ctx_.stream);
  }
}

void ExpertPairs::add_returned(int64_t block, const Tensor& sum, const Tensor& dweights, bool ascending) {
  const int64_t count = shape_.of_block, first = shape_.first + block * count, last = first + count - 1;
  for (int64_t n = 0; n < count && !sum.empty(); ++n) {
    const int64_t expert = ascending ? first + n : last - n;
    if (own().count(expert) == 0) continue;
    add_pairs(sum, returned_.rows(own().begin(expert), own().count(expert)), order(expert), shape_.per_token,
              ctx_.stream);
  }
  const int64_t begin = own().begin(first), pairs = own().end(last) - begin;
  if (dweights.empty() || pairs == 0) return;
  scatter_pairs(Tensor(dweights.data, DType::f32, {order_.dim(0), 1}), returned_weights_.rows(begin, pairs),
                order_.rows(begin, pairs), ctx_.stream);
}

}  // namespace llmtrain
