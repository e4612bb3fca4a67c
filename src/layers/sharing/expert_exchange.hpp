#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor.hpp"
#include "parallel/communicator.hpp"
#include "parallel/node_grid.hpp"

namespace llmtrain {

/// Consecutive experts of a rank, whose rows it has at the same time.
struct ExpertRun {
  int64_t first, count;
};

/// Rows that move between ranks that share the experts of a layer, of which each has as many consecutive ones
/// (parallel.expert; Lepikhin et al. 2020, arXiv:2006.16668). Every call is collective over these ranks.
class ExpertExchange {
 public:
  /// `meanwhile` is called while other ranks are awaited.
  ExpertExchange(Communicator& ranks, Transfer::Meanwhile meanwhile)
      : ranks_(ranks), meanwhile_(std::move(meanwhile)) {}

  int64_t ranks() const { return ranks_.size(); }
  int64_t rank() const { return ranks_.rank(); }
  NodeGrid grid() const { return {ranks_.size(), std::max(ranks_.ranks_per_node(), 1)}; }
  /// True if rows travel between nodes by an ExpertRelay: several nodes have as many ranks each, more than one.
  bool relays() const { return grid().has_levels() && ranks() % grid().per_node == 0; }
  /// Fills the rows of a tensor [ranks, ..], of which this rank has set its own.
  void gather(const Tensor& rows, Stream& stream);

  // The messages of one exchange, then the exchange. Messages without a row are not sent: sender and receiver know the
  // numbers of rows.
  void send(const Tensor& rows, int64_t rank) { add(sends_, rows, rank); }
  void receive(const Tensor& rows, int64_t rank) { add(receives_, rows, rank); }
  void exchange(Stream& stream);

 private:
  static void add(std::vector<Communicator::Message>& messages, const Tensor& rows, int64_t rank) {
    if (rows.numel() > 0) messages.push_back({rows, static_cast<int>(rank)});
  }

  Communicator& ranks_;
  Transfer::Meanwhile meanwhile_;
  std::vector<Communicator::Message> sends_, receives_;
};

}  // namespace llmtrain
