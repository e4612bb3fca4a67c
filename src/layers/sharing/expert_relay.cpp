#include "layers/sharing/expert_relay.hpp"

#include <algorithm>
#include <utility>

#include "kernels/experts.hpp"

namespace llmtrain {

namespace {

/// y = rows of x that a list names, in their order.
void gather_rows(const Tensor& y, const Tensor& x, const Tensor& list, Stream& stream) {
  if (list.dim(0) > 0) gather_pairs(y, x, list, 1, stream);
}

}  // namespace

ExpertRelay::ExpertRelay(ExpertExchange& exchange, Arena::Frame& frame, const Tensor& order,
                         std::span<const int64_t> counts, int64_t k, Pairs pairs, Stream& stream)
    : exchange_(exchange),
      grid_(exchange.grid()),
      k_(k),
      pairs_(std::move(pairs)),
      stream_(stream),
      orders_(static_cast<size_t>(exchange.ranks())) {
  const int64_t me = exchange.rank(), own_node = grid_.node_of(me);
  for (const int64_t count : counts) most_ = std::max(most_, count / k);
  std::vector<std::pair<int64_t, Tensor>> known = {{me, order}};
  for (int64_t node = 0; node < grid_.nodes(); ++node) {
    if (node == own_node) continue;
    const int64_t other = grid_.speaker(node, me);  // each speaks for the other
    known.emplace_back(other, frame.take(DType::i32, {counts[static_cast<size_t>(other)]}));
    exchange.send(order, other);
    exchange.receive(known.back().second, other);
  }
  list_ = frame.take(DType::i32, {2 * exchange.ranks() * most_});
  exchange.exchange(stream);
  for (const auto& [rank, from] : known) {
    std::vector<int32_t>& to = orders_[static_cast<size_t>(rank)];
    to.resize(static_cast<size_t>(counts[static_cast<size_t>(rank)]));
    if (!to.empty()) copy_to_host(to.data(), from.data, from.bytes(), stream);
  }
  stream.synchronize();
}

template <class F>
void ExpertRelay::each_expert(int64_t from, int64_t node, const ExpertRun& run, const F& f) const {
  const int64_t first = grid_.first_rank(node);
  for (int64_t to = first; to < first + grid_.size_of(node); ++to) {
    for (int64_t i = run.first; i < run.first + run.count; ++i) f(to, i, pairs_(from, to, i));
  }
}

bool ExpertRelay::fits(const ExpertRun& run, int64_t rows) const {
  for (int64_t from = 0; from < exchange_.ranks(); ++from) {
    for (int64_t node = 0; node < grid_.nodes(); ++node) {
      if (node == grid_.node_of(from)) continue;
      int64_t sent_on = 0;
      each_expert(from, node, run, [&](int64_t to, int64_t, const Range& pairs) {
        if (to != grid_.speaker(node, from)) sent_on += pairs.count;
      });
      if (sent_on > rows - 2 * most_) return false;
    }
  }
  return true;
}

ExpertRelay::NodeRows ExpertRelay::rows_to(int64_t from, int64_t node, const ExpertRun& run) const {
  const std::vector<int32_t>& order = orders_[static_cast<size_t>(from)];
  std::vector<int32_t> places(order.size() / static_cast<size_t>(k_), -1);
  NodeRows found;
  each_expert(from, node, run, [&](int64_t, int64_t, const Range& pairs) {
    for (int64_t p = pairs.begin; p < pairs.begin + pairs.count; ++p) {
      const int32_t row = order[static_cast<size_t>(p)] / static_cast<int32_t>(k_);
      int32_t& place = places[static_cast<size_t>(row)];
      if (place < 0) {
        place = static_cast<int32_t>(found.rows.size());
        found.rows.push_back(row);
      }
      found.places.push_back(place);
    }
  });
  return found;
}

/// In each step nodes send to those at one distance, so that a rank has the rows of one other rank at a time.
void ExpertRelay::move(const Tensor& x, const ExpertRun& run, const std::function<Tensor(int64_t, int64_t)>& place,
                       const Tensor& scratch) {
  const int64_t me = exchange_.rank(), node = grid_.node_of(me), nodes = grid_.nodes();
  for (int64_t distance = 1; distance < nodes; ++distance) {
    const int64_t to = (node + distance) % nodes, source = grid_.speaker((node + nodes - distance) % nodes, me);
    const NodeRows out = rows_to(me, to, run), in = rows_to(source, node, run);
    steps_ = out.rows;
    steps_.insert(steps_.end(), in.places.begin(), in.places.end());
    const Tensor list = list_.rows(0, std::ssize(steps_));
    if (!steps_.empty()) copy_to_device(list.data, steps_.data(), list.bytes(), stream_);
    const Tensor sent = scratch.rows(0, std::ssize(out.rows)), received = scratch.rows(most_, std::ssize(in.rows));
    gather_rows(sent, x, list.rows(0, std::ssize(out.rows)), stream_);
    exchange_.send(sent, grid_.speaker(to, me));
    exchange_.receive(received, source);
    exchange_.exchange(stream_);
    hand_on(source, run, place, received, list.rows(std::ssize(out.rows), std::ssize(in.places)),
            scratch.rows(2 * most_, scratch.dim(0) - 2 * most_));
  }
}

/// Sends rows of `source` to this node's ranks, which receive those of the others at the same distance.
void ExpertRelay::hand_on(int64_t source, const ExpertRun& run, const std::function<Tensor(int64_t, int64_t)>& place,
                          const Tensor& received, const Tensor& places, const Tensor& scratch) {
  const int64_t me = exchange_.rank(), node = grid_.node_of(me);
  int64_t at = 0, next = 0;
  each_expert(source, node, run, [&](int64_t to, int64_t i, const Range& pairs) {
    const Tensor rows = to == me ? place(i, source) : scratch.rows(next, pairs.count);
    gather_rows(rows, received, places.rows(at, pairs.count), stream_);
    at += pairs.count;
    if (to == me) return;
    exchange_.send(rows, to);
    next += pairs.count;
  });
  for (int64_t speaker = grid_.first_rank(node); speaker < grid_.first_rank(node + 1); ++speaker) {
    if (speaker == me) continue;
    const int64_t theirs = grid_.speaker(grid_.node_of(source), speaker);
    for (int64_t i = run.first; i < run.first + run.count; ++i) exchange_.receive(place(i, theirs), speaker);
  }
  exchange_.exchange(stream_);
}

}  // namespace llmtrain
