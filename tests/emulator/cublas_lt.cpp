#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

#include "emulator/cublasLt.h"
#include "emulator/limits.hpp"

using namespace llmtrain::emulator;

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque {
  cublasComputeType_t compute;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  int64_t rows, columns, leading;
};
struct cublasLtMatmulPreferenceOpaque {
  uint64_t workspace = 0;
  uint32_t alignment = 256;
  uint32_t reductions = ~0U;  ///< mask of allowed schemes
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque;

size_t bytes_of(cudaDataType_t type) {
  if (type == CUDA_R_8I) return 1;
  return type == CUDA_R_32F || type == CUDA_R_32I ? 4 : 2;
}
size_t bytes_of(const Layout& l) {
  return static_cast<size_t>((l.columns - 1) * l.leading + l.rows) * bytes_of(l.type);
}

float half_to_float(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}
float value_at(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == CUDA_R_16BF ? std::bit_cast<float>(uint32_t{bits} << 16) : half_to_float(bits);
}
/// To nearest, ties to even.
void set_value(void* data, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
    return;
  }
  uint16_t bits = 0;
  if (type == CUDA_R_16BF) {
    const auto wide = std::bit_cast<uint32_t>(value);
    bits = value != value ? uint16_t{0x7FFF} : static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
  } else {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(&bits, &half, sizeof bits);
  }
  static_cast<uint16_t*>(data)[i] = bits;
}
/// Keeps 10 of the 23 fraction bits.
float to_tf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0xFFF + (bits >> 13 & 1)) & ~uint32_t{0x1FFF});
}

/// Elements of the inner dimension that are summed. Versions 12.8 to 13.2 leave out the tail of one that is split;
/// LLMTRAIN_EMULATOR_DROPS_TAIL=1 makes this mistake in every product.
int64_t summed(int64_t inner, uint64_t parts) {
  const bool whole = parts == 1 && (inner <= 128 || setting("LLMTRAIN_EMULATOR_DROPS_TAIL", 0) == 0);
  return whole ? inner : inner / 128 * 128;
}

/// op(M) in fp32, column by column.
std::vector<float> plain(const void* data, const Layout& l, cublasOperation_t operation, bool tf32) {
  const bool turned = operation == CUBLAS_OP_T;
  const int64_t rows = turned ? l.columns : l.rows, columns = turned ? l.rows : l.columns;
  std::vector<float> m(static_cast<size_t>(rows * columns));
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const float value = value_at(data, l.type, turned ? j + i * l.leading : i + j * l.leading);
      m[static_cast<size_t>(i + j * rows)] = tf32 && l.type == CUDA_R_32F ? to_tf32(value) : value;
    }
  }
  return m;
}

struct Product {
  cublasLtMatmulDescOpaque description;
  Layout layout_a, layout_b, layout_c, layout_d;
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
  uint64_t parts;  ///< splits of the inner dimension, summed separately

  void operator()() const {
    if (description.compute == CUBLAS_COMPUTE_32I) return sum_integers();
    const bool tf32 = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> left = plain(a, layout_a, description.a, tf32);
    const std::vector<float> right = plain(b, layout_b, description.b, tf32);
    const int64_t m = layout_d.rows, n = layout_d.columns, k = static_cast<int64_t>(left.size()) / m;
    const int64_t used = summed(k, parts);
#pragma omp parallel for schedule(static) if (m * n * k > 500'000)
    for (int64_t j = 0; j < n; ++j) {
      std::vector<float> column(static_cast<size_t>(m), 0.0f), part;
      const auto count = static_cast<int64_t>(parts);
      for (int64_t first = 0; first < count; ++first) {
        part.assign(static_cast<size_t>(m), 0.0f);
        for (int64_t p = first * used / count; p < (first + 1) * used / count; ++p) {
          const float factor = right[static_cast<size_t>(p + j * k)];
          const float* from = left.data() + p * m;
          for (int64_t i = 0; i < m; ++i) part[static_cast<size_t>(i)] += factor * from[i];
        }
        for (size_t i = 0; i < part.size(); ++i) column[i] += part[i];
      }
      for (int64_t i = 0; i < m; ++i) {
        float value = alpha * column[static_cast<size_t>(i)];
        if (beta != 0) value += beta * value_at(c, layout_c.type, i + j * layout_c.leading);
        if (description.epilogue == CUBLASLT_EPILOGUE_BIAS) value += value_at(description.bias, layout_d.type, i);
        set_value(d, layout_d.type, i + j * layout_d.leading, value);
      }
    }
  }

  /// A is transposed, B is not, and the result replaces D.
  void sum_integers() const {
    const auto *left = static_cast<const int8_t*>(a), *right = static_cast<const int8_t*>(b);
    for (int64_t j = 0; j < layout_d.columns; ++j) {
      for (int64_t i = 0; i < layout_d.rows; ++i) {
        int32_t sum = 0;
        for (int64_t p = 0; p < summed(layout_a.rows, parts); ++p) {
          sum += left[p + i * layout_a.leading] * right[p + j * layout_b.leading];
        }
        static_cast<int32_t*>(d)[i + j * layout_d.leading] = sum;
      }
    }
  }
};

/// Rules for products of signed bytes ("Using the cuBLASLt API", cublasLtMatmul(), on kernels for IMMA).
bool fits_integers(const cublasLtMatmulDescOpaque& o, const Layout& a, const Layout& b, const Layout& d) {
  const auto words = [](const Layout& l) { return l.rows % 4 == 0 && l.leading % 4 == 0; };
  return o.a == CUBLAS_OP_T && o.b == CUBLAS_OP_N && a.type == CUDA_R_8I && d.type == CUDA_R_32I && words(a) &&
         words(b) && words(d);
}

bool fits(const cublasLtMatmulDescOpaque& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto rows = [](const Layout& l, cublasOperation_t op) { return op == CUBLAS_OP_T ? l.columns : l.rows; };
  const auto columns = [](const Layout& l, cublasOperation_t op) { return op == CUBLAS_OP_T ? l.rows : l.columns; };
  return rows(a, o.a) == d.rows && columns(b, o.b) == d.columns && columns(a, o.a) == rows(b, o.b) &&
         c.rows == d.rows && c.columns == d.columns && c.type == d.type && a.type == b.type &&
         (o.compute == CUBLAS_COMPUTE_32I ? fits_integers(o, a, b, d) : d.type == a.type || d.type == CUDA_R_32F);
}

/// An algorithm may be refused for fewer columns than it was chosen for.
bool refuses_columns(const cublasLtMatmulDescOpaque& o, const Layout& a, const Layout& d,
                     const cublasLtMatmulAlgo_t& algorithm) {
  if (static_cast<uint64_t>(d.columns) == algorithm.data[4]) return false;
  return refuses({o.compute, o.a, o.b, o.epilogue, a.type, a.rows, a.columns, d.type, d.rows, d.columns});
}

float scale_of(const cublasLtMatmulDescOpaque& o, const void* scale) {
  if (o.compute != CUBLAS_COMPUTE_32I) return *static_cast<const float*>(scale);
  return static_cast<float>(*static_cast<const int32_t*>(scale));
}

template <class T>
cublasStatus_t set(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// In bytes, up to 16.
uint64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 16;
  return address & (~address + 1);
}
void expect_aligned(const void* data, uint64_t alignment, const char* name) {
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    fail(fmt::format("cublasLtMatmul: {} is not aligned to the {} bytes that its algorithm was chosen for", name,
                     alignment));
  }
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}
size_t cublasLtGetVersion() { return 120000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != (compute == CUBLAS_COMPUTE_32I ? CUDA_R_32I : CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = new cublasLtMatmulDescOpaque{compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description->a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description->b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  if (rows == 0 || columns == 0 || leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(preference->workspace, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return set(preference->reductions, value, bytes);
  uint32_t alignment = 0;
  const cublasStatus_t status = set(alignment, value, bytes);
  preference->alignment = std::min(preference->alignment, alignment);
  return status;
}
/// The problem for which an algorithm was chosen is stored in it, and compared with each product.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!fits(*description, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  results[0].algo.data[0] = preference->alignment;
  results[0].algo.data[1] = preference->workspace;
  // like GPUs: the inner dimension is divided if there are few columns and a scheme is allowed
  const bool splits = d->columns <= 8 && preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE;
  results[0].algo.data[3] = splits ? 2 : 1;
  results[0].algo.data[4] = static_cast<uint64_t>(d->columns);
  if (description->epilogue == CUBLASLT_EPILOGUE_BIAS) {
    if (description->bias == nullptr) fail("cublasLtMatmulAlgoGetHeuristic: the bias is not there yet");
    results[0].algo.data[2] = alignment_of(description->bias);
  }
  results[0].workspaceSize = preference->workspace;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!fits(*description, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (refuses_columns(*description, *a, *d, *algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algorithm;
  result->workspaceSize = algorithm->data[1];
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (gpu_is_broken()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!fits(*description, *layout_a, *layout_b, *layout_c, *layout_d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (refuses_columns(*description, *layout_a, *layout_d, *algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Product product{*description,
                        *layout_a,
                        *layout_b,
                        *layout_c,
                        *layout_d,
                        a,
                        b,
                        c,
                        d,
                        scale_of(*description, alpha),
                        scale_of(*description, beta),
                        algorithm->data[3]};
  const std::string what = fmt::format("a product of {} x {} elements", layout_d->rows, layout_d->columns);
  const bool biased = description->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!biased && description->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  expect_device(a, bytes_of(*layout_a), what);
  expect_device(b, bytes_of(*layout_b), what);
  expect_device(d, bytes_of(*layout_d), what);
  if (product.beta != 0) expect_device(c, bytes_of(*layout_c), what);
  if (biased) expect_device(description->bias, static_cast<size_t>(layout_d->rows) * bytes_of(layout_d->type), what);
  if (description->compute == CUBLAS_COMPUTE_32I && (product.alpha != 1 || product.beta != 0)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;  // not needed
  }
  if (workspace_bytes < algorithm->data[1]) fail("cublasLtMatmul: less workspace than its algorithm was chosen for");
  if (workspace_bytes > 0) expect_device(workspace, workspace_bytes, what);
  const char* const names[] = {"A", "B", "D"};
  const void* const operands[] = {a, b, d};
  for (size_t i = 0; i < 3; ++i) expect_aligned(operands[i], algorithm->data[0], names[i]);
  if (biased) expect_aligned(description->bias, algorithm->data[2], "the bias");
  enqueue(stream, what, product);
  return CUBLAS_STATUS_SUCCESS;
}
