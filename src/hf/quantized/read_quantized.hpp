#pragma once
// Codes and scales of a Hugging Face tensor, by ranges: as its files have them, or quantised while 16-bit files are
// read.

#include <cstdint>

#include "core/quantization.hpp"
#include "hf/weights/stored_slice.hpp"
#include "kernels/quantize.hpp"

namespace llmtrain {

/// A matrix as codes and scales. Blocks are numbered over the whole tensor, row-major as the model has it; blocks of
/// int8 are its rows. Thread-safe: every call reads what it returns, and holds no more than that and 1 MiB.
class QuantizedReader {
 public:
  /// `wanted` counts where the files are not quantised; a tensor that is quantised already is read as it is.
  QuantizedReader(const StoredSlice& slice, const Quantization& wanted);

  /// True if the files have codes.
  bool is_stored() const { return slice_.tensor->quantized.has_value(); }
  /// The quantisation of what the calls return. With double quantisation there is a table: read_nested().
  const Quantization& quantization() const { return quantization_; }
  int64_t block_size() const { return block_; }  ///< int8: columns
  int64_t blocks() const { return blocks_of(elements_, block_); }

  /// Codes of the elements of blocks [first, last): two a byte, or signed bytes; and, unless null, their scales.
  void read_blocks(int64_t first, int64_t last, uint8_t* codes, float* scales) const;
  /// With double quantisation: bytes of the scales, their own scales and offset. Blocks of scales have 256 elements. Of
  /// a tensor in 16 bits this reads every element.
  NestedScales read_nested() const;

 private:
  /// Scales of blocks [first, last) as fp32, before double quantisation where the files are not quantised.
  void read_scales(int64_t first, int64_t last, float* scales) const;
  template <class Use>
  void quantize(int64_t first, int64_t last, const Use& use) const;

  StoredSlice slice_;
  Quantization quantization_;
  int64_t elements_;
  int64_t block_;
};

}  // namespace llmtrain
