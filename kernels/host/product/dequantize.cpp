#include "kernels/host/product/dequantize.hpp"

#include "core/profile.hpp"
#include "device/processor.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/quantize.hpp"

namespace llmtrain {

namespace host {

void dequantize_row(const QuantizedMatrix& matrix, int64_t row, int64_t column, int64_t count, DType dtype, void* out,
                    bool wide) {
  const QuantizedRows& slice = matrix.slice_of(row);
  const bool blocks = matrix.format.type != QuantizedType::int8;
  const DequantizedRun run{matrix.format,
                           slice.chunks,
                           slice.table,
                           blocks ? levels_of(matrix.format.type).data() : nullptr,
                           signed_dynamic_map.data(),
                           std::countr_zero(static_cast<uint64_t>(matrix.format.block_size)),
                           matrix.columns,
                           (row - slice.first_row + slice.skipped) * matrix.columns + column,
                           count,
                           dtype,
                           out,
                           wide};
#if defined(__x86_64__)
  static const bool avx512 = processor_has(Instructions::avx512);
  if (avx512) return dequantize_avx512(run);
#endif
  Dequantizer<Float8>::run(run);
}

}  // namespace host

void dequantize(const Tensor& out, const QuantizedMatrix& matrix, Stream&) {
  LLMTRAIN_CHECK(
      out.rank == 2 && out.dim(0) == matrix.rows && out.dim(1) == matrix.columns && is_compute_type(out.dtype),
      "a matrix is dequantised into one of its shape");
  const ProfileSpan span("dequantize", [&] { return traffic({&out}); });
  const int64_t row_bytes = matrix.columns * static_cast<int64_t>(size_of(out.dtype));
  host::parallel_blocks(matrix.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      host::dequantize_row(matrix, row, 0, matrix.columns, out.dtype, static_cast<char*>(out.data) + row * row_bytes);
    }
  });
}

}  // namespace llmtrain
