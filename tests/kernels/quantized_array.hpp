#pragma once
// A quantised matrix of random codes and scales on the device, and the same matrix dequantised.

#include <cstring>
#include <vector>

#include "kernels/kernel_test.hpp"
#include "kernels/quantized_matrix.hpp"

namespace llmtrain::test {

class QuantizedArray {
 public:
  /// Slices of these numbers of rows.
  QuantizedArray(const Quantization& format, const std::vector<int64_t>& slices, int64_t columns, uint64_t seed)
      : matrix_{format, 0, columns} {
    for (const int64_t rows : slices) {
      Slice& slice = slices_.emplace_back(random_slice(format, rows, columns, ++seed));
      matrix_.slices[static_cast<size_t>(matrix_.count++)] = {matrix_.rows, rows};
      matrix_.rows += rows;
      slice.rows = rows;
    }
    upload();
  }

  const QuantizedMatrix& matrix() const { return matrix_; }
  /// Exchanges the nibbles of a byte that differ, or changes a code of int8: the control of equality tests.
  void change_a_code() {
    for (uint8_t& byte : slices_.back().records) {
      const auto other =
          static_cast<uint8_t>(matrix_.format.type == QuantizedType::int8 ? byte ^ 0x55 : byte << 4 | byte >> 4);
      if (other == byte) continue;
      byte = other;
      return upload();
    }
  }
  /// The matrix in the compute dtype, by the plain loop.
  Array dequantized(DType dtype) const {
    Values values;
    for (const Slice& slice : slices_) {
      std::vector<float> part(static_cast<size_t>(slice.rows * matrix_.columns));
      const StoredChunks stored{slice.records.data(), 0, slice.table.data(), matrix_.columns};
      dequantize_on_host(matrix_.format, stored, 0, static_cast<int64_t>(part.size()), part.data());
      values.insert(values.end(), part.begin(), part.end());
    }
    return {dtype, {matrix_.rows, matrix_.columns}, values};
  }

 private:
  struct Slice {
    std::vector<uint8_t> records;
    std::vector<float> table;
    int64_t rows = 0;
    DeviceBuffer on_device, table_on_device;
  };

  static Slice random_slice(const Quantization& format, int64_t rows, int64_t columns, uint64_t seed) {
    const int64_t chunks = (rows * columns + chunk_elements - 1) / chunk_elements;
    Slice slice;
    slice.records.resize(static_cast<size_t>(chunks * chunk_bytes(format)));
    for (size_t i = 0; i < slice.records.size(); ++i) slice.records[i] = static_cast<uint8_t>(random_bits(seed, 2, i));
    const auto scale = [&](uint64_t i) { return 0.5f + static_cast<float>(random_uniform(random_bits(seed, 3, i))); };
    for (int64_t c = 0; c < chunks && !format.double_quantization; ++c) {
      for (int64_t s = 0; s < scales_of_chunk(format); ++s) {
        const float value = scale(static_cast<uint64_t>(c * 8 + s));
        std::memcpy(slice.records.data() + c * chunk_bytes(format) + code_bytes(format) + s * 4, &value, 4);
      }
    }
    slice.table.resize(static_cast<size_t>(table_values(format, rows, columns)));
    for (size_t i = 0; i < slice.table.size(); ++i) slice.table[i] = scale(1000 + i);
    return slice;
  }

  void upload() {
    for (size_t i = 0; i < slices_.size(); ++i) {
      Slice& slice = slices_[i];
      const auto bytes = static_cast<int64_t>(slice.records.size());
      const auto table_bytes = static_cast<int64_t>(slice.table.size() * sizeof(float));
      slice.on_device = DeviceBuffer(bytes);
      slice.table_on_device = DeviceBuffer(std::max<int64_t>(table_bytes, 4));
      copy_to_device(slice.on_device.data(), slice.records.data(), bytes, stream());
      copy_to_device(slice.table_on_device.data(), slice.table.data(), table_bytes, stream());
      stream().synchronize();
      matrix_.slices[i].chunks = static_cast<const uint8_t*>(slice.on_device.data());
      matrix_.slices[i].table = static_cast<const float*>(slice.table_on_device.data());
    }
  }

  QuantizedMatrix matrix_;
  std::vector<Slice> slices_;
};

}  // namespace llmtrain::test
