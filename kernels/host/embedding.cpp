#include "kernels/embedding.hpp"

#include <cmath>

#include "core/profile.hpp"
#include "kernels/host/dropout_row.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 16;
constexpr int64_t columns_per_task = 64;  // a multiple of every cache line, so that threads share no line of the tables

}  // namespace

void embedding_forward(const Tensor& x, const Tensor& table, const Tensor& position_table, float scale,
                       const Batch& batch, const Dropout& dropout, Stream& /*stream*/) {
  const ProfileSpan span("embedding_forward", [&] { return traffic({&x, &x}); });
  const int64_t rows = x.dim(0), channels = x.dim(1);
  LLMTRAIN_CHECK(table.dim(1) == channels && batch.tokens == rows,
                 "the table must have the width of the output, and the batch one token per row");
  float* out = x.as<float>();
  const int32_t* ids = batch.ids.as<int32_t>();
  const int32_t* positions = batch.positions.as<int32_t>();
  dispatch(table.dtype, [&](auto* tag) {
    const auto* tokens = static_cast<decltype(tag)>(table.data);
    const auto* places = static_cast<decltype(tag)>(position_table.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto* token = tokens + ids[r] * channels;
        const auto* place = places != nullptr ? places + positions[r] * channels : nullptr;
        float* to = out + r * channels;
        for (int64_t c = 0; c < channels; ++c) to[c] = scale * load(token + c);
        if (place != nullptr) {
          for (int64_t c = 0; c < channels; ++c) to[c] += load(place + c);
        }
        with_dropout(dropout, batch, r, channels, 0, channels, [&](int64_t first, int64_t count, const float* keep) {
          if (keep == nullptr) return;
          for (int64_t i = 0; i < count; ++i) to[first + i] *= keep[i];
        });
      }
    });
  });
}

void add_table_rows(const Tensor& x, const Tensor& table, int64_t first, const Tensor& ids, float scale,
                    Stream& /*stream*/) {
  const ProfileSpan span("embedding_forward", [&] { return traffic({&x, &x}); });
  check_table_rows(x, table, ids);
  const int64_t channels = x.dim(1), rows = table.dim(0);
  float* out = x.as<float>();
  const int32_t* tokens = ids.as<int32_t>();
  dispatch(table.dtype, [&](auto* tag) {
    const auto* from = static_cast<decltype(tag)>(table.data);
    parallel_blocks(x.dim(0), rows_per_task, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = tokens[r] - first;
        if (row < 0 || row >= rows) continue;
        for (int64_t c = 0; c < channels; ++c) {
          out[r * channels + c] = std::fma(scale, load(from + row * channels + c), out[r * channels + c]);
        }
      }
    });
  });
}

void embedding_backward(const Tensor& dtable, const Tensor& dposition, const Tensor& dx, float scale,
                        const Batch& batch, const Dropout& dropout, Stream& /*stream*/, int32_t padding,
                        int64_t first_token) {
  const ProfileSpan span("embedding_backward", [&] { return traffic({&dx, &dx, &dx}); });
  const int64_t rows = dx.dim(0), channels = dx.dim(1);
  const float* from = dx.as<float>();
  float* tokens = dtable.empty() ? nullptr : dtable.as<float>();
  float* places = dposition.empty() ? nullptr : dposition.as<float>();
  const int32_t* ids = batch.ids.as<int32_t>();
  const int32_t* positions = batch.positions.as<int32_t>();
  const int64_t table_rows = tokens == nullptr ? 0 : dtable.dim(0);
  parallel_blocks(channels, columns_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto add = [&](float* row, float factor, int64_t first, int64_t count, const float* keep) {
        const float* d = from + r * channels + first;
        for (int64_t i = 0; i < count; ++i) {
          row[first + i] = std::fma(d[i], keep != nullptr ? factor * keep[i] : factor, row[first + i]);
        }
      };
      const int64_t row = ids[r] - first_token;
      const bool adds = row >= 0 && row < table_rows && ids[r] != padding;
      with_dropout(dropout, batch, r, channels, begin, end, [&](int64_t first, int64_t count, const float* keep) {
        if (adds) add(tokens + row * channels, scale, first, count, keep);
        if (places != nullptr) add(places + positions[r] * channels, 1.0f, first, count, keep);
      });
    }
  });
}

}  // namespace llmtrain
