#include "layers/sharing/shared_rows.hpp"

#include "core/error.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

SharedRows::SharedRows(const Mesh& mesh, const RowShares& shares, const Transfer::Meanwhile& meanwhile)
    : mesh_(mesh), shares_(shares), meanwhile_(meanwhile) {
  LLMTRAIN_CHECK(shares.ranks == mesh.shape().context, "the ranks that share rows are those of the context axis");
  if (shares.ranks > 1) heads_.emplace(*mesh.context(), meanwhile);
}

Batch SharedRows::choose(const Batch& whole) {
  whole_ = whole;
  first_ = 0;
  count_ = whole.tokens;
  if (shares_.blocks == 1) return whole;
  LLMTRAIN_CHECK(whole.tokens >= shares_.blocks, "a micro-batch has a row for each block");
  const int64_t blocks = shares_.blocks_of_rank();
  row_borders_.clear();
  for (int64_t rank = 0; rank <= shares_.ranks; ++rank) {
    row_borders_.push_back(shares_.begin(rank * blocks, whole.tokens));
  }
  const int64_t first_block = mesh_.context_rank() * blocks;
  first_ = shares_.begin(first_block, whole.tokens);
  block_ends_.clear();
  for (int64_t block = 1; block <= blocks; ++block) {
    block_ends_.push_back(shares_.begin(first_block + block, whole.tokens) - first_);
  }
  count_ = block_ends_.back();
  Batch rows = whole.rows(first_, count_);
  if (heads_) {
    heads_->set_row_ends(std::span(row_borders_).subspan(1));
  } else {
    rows.segments = whole.segments;
    rows.segment_count = whole.segment_count;
    rows.longest_segment = whole.longest_segment;
  }
  return rows;
}

void SharedRows::gather(TokenStatistics statistics, Stream& stream) {
  if (!heads_) return;
  statistics.each([&](const Tensor& all) {
    if (all.empty()) return;
    std::vector<int64_t> borders = row_borders_;
    for (int64_t& border : borders) border *= all.numel() / all.dim(0);
    Transfer transfer = [&] {
      const TrafficScope scope(TrafficAxis::context);
      return mesh_.context()->all_gather(all, borders, stream);
    }();
    transfer.finish(stream, meanwhile_);
  });
}

}  // namespace llmtrain
