#include "layers/sharing/tensor_sum.hpp"

#include <bit>

#include "core/error.hpp"
#include "kernels/elementwise.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

namespace {

/// Values that end at each of `count` values of a binary tree.
std::vector<uint8_t> tree_additions(int64_t count) {
  std::vector<uint8_t> additions;
  for (int64_t i = 1; i <= count; ++i) {
    additions.push_back(static_cast<uint8_t>(std::countr_zero(static_cast<uint64_t>(i))));
  }
  return additions;
}

/// Maximum number of sums that await their partners while a rank adds its blocks.
int64_t levels_of(const TensorShare& share) { return std::bit_width(static_cast<uint64_t>(share.count)); }

/// Elements of one rank's part of a sum: parts of all ranks but the last are whole cache lines.
int64_t part_elements(int64_t elements, int64_t ranks) {
  constexpr int64_t line = 16;
  return ((elements + ranks - 1) / ranks + line - 1) / line * line;
}

}  // namespace

void TensorSum::check() const {
  const auto power_of_two = [](int64_t n) { return n > 0 && std::has_single_bit(static_cast<uint64_t>(n)); };
  LLMTRAIN_CHECK(power_of_two(share_.blocks) && power_of_two(share_.count) && share_.count <= share_.blocks,
                 "matrices are split into a power of two of blocks, of which each rank has as many");
  const int64_t ranks = ranks_of_tree();
  LLMTRAIN_CHECK(
      ranks_ == nullptr ? ranks == 1 : ranks_->size() == ranks && ranks_->rank() == share_.first / share_.count,
      "the ranks that share matrices have their blocks in order");
}

int64_t TensorSum::scratch_elements(const TensorShare& share, int64_t elements) {
  const int64_t ranks = share.blocks / share.count;
  if (ranks == 1) return 0;
  return ranks == 2 ? elements : ranks * part_elements(elements, ranks);
}

void TensorSum::exchange(Stream& stream) {
  Transfer transfer = [&] {
    const TrafficScope scope(TrafficAxis::tensor);
    return ranks_->send_and_receive(sends_, receives_, stream);
  }();
  transfer.finish(stream, meanwhile_);
}

/// Two ranks swap their sums. More each add one part of all sums, which they then gather.
void TensorSum::add_ranks(const Tensor& sum, const Tensor& scratch, Stream& stream) {
  const auto ranks = static_cast<int>(ranks_of_tree());
  if (ranks == 1) return;
  const int me = ranks_->rank();
  const int64_t elements = sum.numel();
  const Tensor flat(sum.data, DType::f32, {elements});
  sends_.clear();
  receives_.clear();
  if (ranks == 2) {
    const Tensor received = scratch.rows(0, elements);
    sends_.push_back({flat, 1 - me});
    receives_.push_back({received, 1 - me});
    exchange(stream);
    return add_into(flat, received, false, stream);
  }
  const int64_t most = part_elements(elements, ranks);
  const auto part_of_rank = [&](int rank) {
    const int64_t begin = std::min(rank * most, elements);
    return flat.rows(begin, std::min(most, elements - begin));
  };
  const Tensor mine = part_of_rank(me);
  terms_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    terms_.push_back(scratch.rows(rank * most, mine.numel()));
    if (rank == me) continue;
    sends_.push_back({part_of_rank(rank), rank});
    receives_.push_back({terms_.back(), rank});
  }
  copy_on_device(terms_[static_cast<size_t>(me)].data, mine.data, mine.bytes(), stream);
  exchange(stream);
  add_tree(mine, terms_, tree_additions(ranks), stream);
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    sends_.push_back({mine, rank});
    receives_.push_back({part_of_rank(rank), rank});
  }
  exchange(stream);
}

void TensorSum::add_terms(const Tensor& sum, std::span<const Tensor> terms, const Tensor& scratch, Stream& stream) {
  add_tree(sum, terms, tree_additions(share_.count), stream);
  add_ranks(sum, scratch, stream);
}

void TensorSum::gather(const Tensor& blocks, Stream& stream) {
  const auto ranks = static_cast<int>(ranks_of_tree());
  if (ranks == 1) return;
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == ranks_->rank()) continue;
    sends_.push_back({blocks.rows(share_.first, share_.count), rank});
    receives_.push_back({blocks.rows(rank * share_.count, share_.count), rank});
  }
  exchange(stream);
}

BlockSum::BlockSum(TensorSum& tensor, Arena::Frame& frame, int64_t rows, int64_t columns) : tensor_(tensor) {
  for (int64_t level = 0; level < levels_of(tensor.share()); ++level) {
    levels_.push_back(frame.take(DType::f32, {rows, columns}));
  }
  scratch_ = frame.take(DType::f32, {TensorSum::scratch_elements(tensor.share(), rows * columns)});
}

void BlockSum::add(Stream& stream) {
  for (int addition = std::countr_zero(static_cast<uint64_t>(++added_)); addition > 0; --addition) {
    --depth_;
    add_into(levels_[depth_ - 1], levels_[depth_], false, stream);
  }
}

Tensor BlockSum::finish(Stream& stream) {
  LLMTRAIN_CHECK(added_ == tensor_.share().count && depth_ == 1, "a sum has a term of each block");
  tensor_.add_ranks(levels_.front(), scratch_, stream);
  return levels_.front();
}

int64_t BlockSum::scratch_bytes(const TensorShare& share, int64_t elements) {
  return levels_of(share) * Arena::aligned(4 * elements) +
         Arena::aligned(4 * TensorSum::scratch_elements(share, elements));
}

}  // namespace llmtrain
