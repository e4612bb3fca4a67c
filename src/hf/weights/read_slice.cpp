#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/convert.hpp"
#include "hf/weights/stored_slice.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {
namespace {

constexpr int64_t staging_bytes = int64_t{256} << 10;  ///< fits the second-level cache
constexpr int64_t page_bytes = 4096;

/// Buffer of this thread, reused by later calls.
char* staging(int64_t bytes) {
  thread_local std::vector<char> buffer;
  if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(static_cast<size_t>(bytes));
  return buffer.data();
}

int64_t read_rows(const StoredSlice& s, int64_t begin, int64_t end, float* out) {
  const int64_t width = bits_of(s.tensor->type) / 8;
  const int64_t bytes = (end - begin) * width;
  if (s.tensor->type == StoredType::F32) {
    s.file->read(s.tensor->begin + begin * width, bytes, out);
    return bytes;
  }
  char* buffer = staging(std::min(staging_bytes, bytes));
  for (int64_t at = begin; at < end; at += staging_bytes / width) {
    const int64_t count = std::min(staging_bytes / width, end - at);
    s.file->read(s.tensor->begin + at * width, count * width, buffer);
    to_float_in_memory(s.tensor->type, buffer, count, out + (at - begin));
  }
  return bytes;
}

/// Reads a few rows at a time, with the gaps between their elements. Calls put(first, values, count) for elements of a
/// row, counted from `begin` on.
template <class Put>
int64_t read_apart(const StoredSlice& s, int64_t begin, int64_t end, const Put& put) {
  const int64_t width = bits_of(s.tensor->type) / 8, end_row = (end + s.columns - 1) / s.columns;
  const WeightIndex::Strides& strides = *s.tensor->strides;
  const int64_t at_once = std::max<int64_t>(staging_bytes / (strides.row * width), 1);
  int64_t total = 0;
  std::vector<float> values, run(static_cast<size_t>(s.columns));
  for (int64_t row = begin / s.columns; row < end_row; row += at_once) {
    const int64_t count = std::min(at_once, end_row - row);
    const int64_t elements = (count - 1) * strides.row + (s.columns - 1) * strides.column + 1;
    char* buffer = staging(elements * width);
    s.file->read(s.tensor->begin + row * strides.row * width, elements * width, buffer);
    total += elements * width;
    values.resize(static_cast<size_t>(elements));
    to_float(s.tensor->type, buffer, elements, values.data());
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at = (row + r) * s.columns - begin;  // address of the row
      const int64_t from = std::max<int64_t>(0, -at), to = std::min(s.columns, end - begin - at);
      for (int64_t c = from; c < to; ++c) {
        run[static_cast<size_t>(c - from)] = values[static_cast<size_t>(r * strides.row + c * strides.column)];
      }
      put(at + from, run.data(), to - from);
    }
  }
  return total;
}

/// Rows [first, last) of the model's matrix are columns of the stored one; a few stored rows are read at a time. Calls
/// put(first, values, count) for elements of a row, counted from `begin` on.
template <class Put>
int64_t read_columns(const StoredSlice& s, int64_t begin, int64_t end, const Put& put) {
  if (s.tensor->packed) return read_packed(s, begin, end, put);
  const int64_t width = bits_of(s.tensor->type) / 8;
  const int64_t first = begin / s.columns, last = (end + s.columns - 1) / s.columns, rows = last - first;
  const TensorBlock place = s.place();
  const WeightIndex::Strides strides = s.tensor->strides.value_or(WeightIndex::Strides{1, place.rows});
  if (strides.row > strides.column) return read_apart(s, begin, end, put);
  const int64_t span = (rows - 1) * strides.row + 1;        // elements of a stored row that have the rows
  const int64_t all_rows = std::max(strides.column, span);  // in a stored row
  const int64_t origin =
      s.tensor->begin + (place.first_column * all_rows + (place.first_row + first) * strides.row) * width;
  const bool whole = (all_rows - span) * width < page_bytes;  // includes the gaps
  const int64_t stored_row = (whole ? all_rows : span) * width;
  const int64_t block = std::clamp<int64_t>(staging_bytes / (stored_row + 4 * span), 1, s.columns);
  int64_t total = 0;
  std::vector<float> values(static_cast<size_t>(block * span)), run(static_cast<size_t>(block));
  for (int64_t c = 0; c < s.columns; c += block) {
    const int64_t count = std::min(block, s.columns - c);
    char* buffer = staging(block * stored_row);
    if (whole) {
      const int64_t bytes = (count * all_rows - (all_rows - span)) * width;
      s.file->read(origin + c * all_rows * width, bytes, buffer);
      total += bytes;
    } else {
      for (int64_t i = 0; i < count; ++i) {
        s.file->read(origin + (c + i) * all_rows * width, stored_row, buffer + i * stored_row);
      }
      total += count * stored_row;
    }
    for (int64_t i = 0; i < count; ++i) {
      to_float(s.tensor->type, buffer + i * stored_row, span, values.data() + i * span);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = (first + r) * s.columns + c - begin;  // address in `out` of column c in the row
      const int64_t from = std::max<int64_t>(0, -row), to = std::min(count, end - begin - row);
      if (from >= to) continue;
      for (int64_t i = from; i < to; ++i)
        run[static_cast<size_t>(i - from)] = values[static_cast<size_t>(i * span + r * strides.row)];
      put(row + from, run.data(), to - from);
    }
  }
  return total;
}

/// Reads elements of a block, which are runs of those of the whole matrix.
int64_t read_block(const StoredSlice& slice, int64_t begin, int64_t end, float* out) {
  StoredSlice whole = slice;
  whole.rows = slice.block->rows;
  whole.columns = slice.block->columns;
  whole.block.reset();
  whole.minus = nullptr;
  int64_t bytes = 0;
  each_external_run(*slice.block, slice.columns, begin, end, [&](const ExternalRun& run) {
    bytes += read_slice(whole, run.first, run.first + run.end - run.begin, out + (run.begin - begin));
  });
  return bytes;
}

/// Takes the product from elements [begin, end). Returns the number of bytes read.
int64_t subtract(const StoredSlice& slice, int64_t begin, int64_t end, float* out) {
  const SubtractedProduct& product = *slice.minus;
  const TensorBlock place = slice.place();
  const int64_t rank = product.a.shape.front(), columns = product.a.shape.back();
  if (columns != place.columns || product.b.shape.front() != place.rows) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {} and {} do not fit a matrix [{}, {}]", product.file->path(),
                                printable(product.a.name), printable(product.b.name), place.rows, place.columns));
  }
  const int64_t first = begin / slice.columns, last = (end - 1) / slice.columns + 1;
  std::vector<float> a(static_cast<size_t>(rank * columns)), b(static_cast<size_t>((last - first) * rank));
  product.file->read(product.a.begin, 4 * std::ssize(a), a.data());
  product.file->read(product.b.begin + 4 * (place.first_row + first) * rank, 4 * std::ssize(b), b.data());
  std::vector<double> sums;
  for (int64_t row = first; row < last; ++row) {
    const int64_t from = std::max(begin, row * slice.columns), to = std::min(end, (row + 1) * slice.columns);
    sums.assign(static_cast<size_t>(to - from), 0);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = product.scale * b[static_cast<size_t>((row - first) * rank + k)];
      const float* const values =
          &a[static_cast<size_t>(k * columns + place.first_column + from - row * slice.columns)];
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = std::fma(factor, values[i], sums[i]);
    }
    float* const to_values = out + (from - begin);
    for (size_t i = 0; i < sums.size(); ++i) to_values[i] = static_cast<float>(to_values[i] - sums[i]);
  }
  return 4 * (std::ssize(a) + std::ssize(b));
}

}  // namespace

int64_t read_slice(const StoredSlice& slice, int64_t begin, int64_t end, float* out) {
  if (begin >= end) return 0;
  if (slice.minus != nullptr) {
    StoredSlice plain = slice;
    plain.minus = nullptr;
    return read_slice(plain, begin, end, out) + subtract(slice, begin, end, out);
  }
  if (slice.block && !slice.transposed) return read_block(slice, begin, end, out);
  if (slice.tensor->mxfp4) return read_mxfp4(slice, begin, end, out);
  if (slice.tensor->quantized) return read_dequantized(slice, begin, end, out);
  if (!slice.transposed) return read_rows(slice, begin, end, out);
  return read_columns(slice, begin, end, [out](int64_t first, const float* values, int64_t count) {
    std::copy_n(values, count, out + first);
  });
}

int64_t read_transposed(const StoredSlice& slice, int64_t begin, int64_t end, DType type, void* out,
                        const ExamineValues& examine) {
  if (slice.minus != nullptr) {
    std::vector<float> values(static_cast<size_t>(end - begin));
    const int64_t bytes = read_slice(slice, begin, end, values.data());
    examine(0, values.data(), end - begin);
    round_to(type, values.data(), end - begin, out);
    return bytes;
  }
  return read_columns(slice, begin, end, [&](int64_t first, const float* values, int64_t count) {
    examine(first, values, count);
    round_to(type, values, count, static_cast<char*>(out) + first * static_cast<int64_t>(size_of(type)));
  });
}

}  // namespace llmtrain
