#include "core/profile.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/key_copies.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

template <class T>
struct CopyHeads {
  T* wide;
  const T* narrow;
  int64_t wide_columns, narrow_columns;
  KeyCopies columns;
  __device__ void operator()(int64_t at) const {
    const int64_t row = at / narrow_columns, column = at % narrow_columns;
    T* out = wide + row * wide_columns;
    if (column < columns.queries) {
      out[column] = narrow[at];
      return;
    }
    const int64_t first = columns.wide_column(column);
    for (int64_t i = 0; i < columns.copies; ++i) out[first + i * columns.width] = narrow[at];
  }
};

template <class T>
struct AddHeads {
  T* narrow;
  const T* wide;
  int64_t wide_columns, narrow_columns;
  KeyCopies columns;
  __device__ void operator()(int64_t at) const {
    const int64_t row = at / narrow_columns, column = at % narrow_columns;
    const T* in = wide + row * wide_columns;
    if (column < columns.queries) {
      narrow[at] = in[column];
      return;
    }
    const T* first = in + columns.wide_column(column);
    store(narrow + at, columns.sum([&](int64_t i) { return load(first + i * columns.width); }));
  }
};

}  // namespace

void copy_key_heads(const Tensor& wide, const Tensor& narrow, const AttentionShape& shape, int64_t copies,
                    Stream& stream) {
  const KeyCopies columns(wide, narrow, shape, copies);
  dispatch(wide, [&]<class T>(T* out) {
    for_each(narrow.numel(), stream,
             CopyHeads<T>{out, static_cast<const T*>(narrow.data), wide.dim(1), narrow.dim(1), columns});
  });
}

void add_key_heads(const Tensor& narrow, const Tensor& wide, const AttentionShape& shape, int64_t copies,
                   Stream& stream) {
  const KeyCopies columns(wide, narrow, shape, copies);
  dispatch(narrow, [&]<class T>(T* out) {
    for_each(narrow.numel(), stream,
             AddHeads<T>{out, static_cast<const T*>(wide.data), wide.dim(1), narrow.dim(1), columns});
  });
}

}  // namespace llmtrain
