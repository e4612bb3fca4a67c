#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "layers/sharing/expert_exchange.hpp"

namespace llmtrain {

/// Rows on their way to experts of other nodes. A row crosses the border of a node once, whichever of its experts are
/// there: it goes to the rank that speaks with this one (NodeGrid::speaker), which sends it on inside the node. Nodes
/// have as many ranks each. Every call is collective.
class ExpertRelay {
 public:
  /// Consecutive pairs of a rank.
  struct Range {
    int64_t begin, count;
  };
  /// The pairs of rank `from` with the i-th expert of rank `to`.
  using Pairs = std::function<Range(int64_t from, int64_t to, int64_t i)>;

  /// order: int32 [N k], see sort_pairs(); `counts`: pairs of each rank. Takes memory from the frame.
  ExpertRelay(ExpertExchange& exchange, Arena::Frame& frame, const Tensor& order, std::span<const int64_t> counts,
              int64_t k, Pairs pairs, Stream& stream);
  /// Bytes of the frame, at most.
  static int64_t scratch_bytes(int64_t ranks, int64_t rows, int64_t k) {
    return Arena::aligned(4 * ranks * rows * k) + Arena::aligned(8 * ranks * rows);
  }

  /// True if `scratch` of move() holds what every rank sends on of a run. `rows`: of `scratch`; one expert always fits.
  bool fits(const ExpertRun& run, int64_t rows) const;
  /// Moves rows of x [N, C] from and to other nodes. place(i, from): rows of this rank's expert i that rank `from`
  /// sends. scratch: [rows, C], of x's dtype. Messages that are ready are exchanged, too.
  void move(const Tensor& x, const ExpertRun& run, const std::function<Tensor(int64_t i, int64_t from)>& place,
            const Tensor& scratch);

 private:
  /// Rows of a rank that experts of a node get, and for each pair, by rank, expert and pair, which of these it has.
  struct NodeRows {
    std::vector<int32_t> rows, places;
  };
  NodeRows rows_to(int64_t from, int64_t node, const ExpertRun& run) const;
  /// Calls f(rank, i, pairs) for the experts of a node.
  template <class F>
  void each_expert(int64_t from, int64_t node, const ExpertRun& run, const F& f) const;
  void hand_on(int64_t source, const ExpertRun& run, const std::function<Tensor(int64_t i, int64_t from)>& place,
               const Tensor& received, const Tensor& places, const Tensor& scratch);

  ExpertExchange& exchange_;
  NodeGrid grid_;
  int64_t k_, most_ = 0;  ///< rows of a rank
  Pairs pairs_;
  Stream& stream_;
  std::vector<std::vector<int32_t>> orders_;  ///< of this rank and of those for which it speaks
  Tensor list_;                               ///< int32: rows of one step
  std::vector<int32_t> steps_;                ///< what list_ is copied from
};

}  // namespace llmtrain
