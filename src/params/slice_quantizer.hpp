#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/quantize.hpp"
#include "kernels/quantized_matrix.hpp"
#include "parallel/communicator.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Elements [begin, end) of a slice.
struct ElementRange {
  int64_t begin;
  int64_t end;
};

/// Quantises the values of a slice, a tensor of the model's files, into a unit of fewer bits. Each rank needs the
/// values that it stores, with int8 of whole rows; the bits do not depend on ranks and ranges.
class SliceQuantizer {
 public:
  /// `unit` is of a started store; call ParamStore::publish_weights() after its slices.
  SliceQuantizer(const UnitState& unit, int param, int slice);

  /// Ranges that this rank has to put, without overlap, each of about `max_elements` elements at most.
  std::vector<ElementRange> ranges(int64_t max_elements) const;
  /// The parts of a range that this rank stores: all of it, but for int8.
  std::vector<ElementRange> owned(const ElementRange& range) const;
  /// Quantises and stores the values of one of the ranges. Any thread. Throws UserError(bad_content) for values that
  /// are not finite, with int8 in fp16.
  void put(const ElementRange& range, const float* values, Stream& stream);
  /// Stores codes and scales of one of the ranges: two codes a byte, or signed bytes. Any thread.
  void put_codes(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream);
  /// Stores what is known with the whole slice: its table and, with double quantisation, the scales. Collective.
  void finish(Communicator& communicator, Stream& stream);
  /// Does so with scales of blocks that are doubly quantised already. On every rank.
  void finish(const NestedScales& scales, Stream& stream);

 private:
  ElementRange whole() const { return {0, rows_ * columns_}; }
  void check_finite(const std::vector<float>& scales) const;
  void store_table(const std::vector<float>& values, Stream& stream) const;
  void put_blocks(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream);
  void put_rows(const ElementRange& range, const uint8_t* codes, const float* scales, Stream& stream);
  template <class Visit>
  void each_owned(const ElementRange& range, const Visit& visit) const;

  const UnitState& unit_;
  int param_, slice_;
  Quantization format_;
  int64_t offset_, rows_, columns_;
  std::mutex mutex_;
  /// Bits of the scales of blocks, or rows, for which other ranks have zero.
  std::vector<int64_t> scales_;
};

}  // namespace llmtrain
