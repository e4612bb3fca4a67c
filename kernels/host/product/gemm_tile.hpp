#pragma once
#include <compare>
#include <cstdint>
#include <memory>

#include "core/dtype.hpp"

namespace llmtrain::host {

/// C[m, n] = or += A[m, k] B[k, n]. B is a packed panel: rows of ldb columns, for bf16 two rows of k interleaved. C is
/// fp32; with an input of u8, B has signed bytes, four rows of k interleaved, and C is i32. Every element of an fp32
/// product is the sum over k, from zero, by fused multiply-adds in order, which is then added to C: all kernels give
/// the same bits.
struct TileShape {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t lda;
  int64_t ldb;
  int64_t ldc;
  DType input;
  bool accumulate;
  auto operator<=>(const TileShape&) const = default;  // NOLINT(modernize-use-nullptr): not written here
};

class TileKernel {
 public:
  virtual ~TileKernel() = default;
  virtual int64_t scratch_bytes() const { return 0; }  ///< per thread
  /// Configures the processor before run() (AMX tiles); needed after a different kernel.
  virtual void configure_thread() const {}
  /// Returns false on failure.
  virtual bool run(const void* a, const void* b, void* c, void* scratch) const = 0;
};

/// True if the oneDNN of this build has micro-kernels, which are an option of its own build.
bool onednn_has_micro_kernels();
/// Creates oneDNN's micro-kernel, or null if the processor has none for this dtype.
std::unique_ptr<TileKernel> make_micro_kernel(const TileShape& shape);
/// Resets the state that configure_thread() left in the calling thread.
void leave_micro_kernels();
/// Creates a kernel for any processor; fp32 only. It reads whole vectors of `plain_columns` columns of B.
std::unique_ptr<TileKernel> make_plain_kernel(const TileShape& shape);
inline constexpr int64_t plain_columns = 8;
/// True if micro-kernels for the dtype exist, with panels in the layout above.
bool have_micro_kernels(DType input);
/// AMX loads tiles row by row: rows of A that are pages apart cost a third of the speed, more than copying them.
bool long_rows_are_slow();

}  // namespace llmtrain::host
