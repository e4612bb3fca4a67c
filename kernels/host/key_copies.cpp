#include "kernels/key_copies.hpp"

#include <algorithm>

#include "core/profile.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

void copy_key_heads(const Tensor& wide, const Tensor& narrow, const AttentionShape& shape, int64_t copies,
                    Stream& /*stream*/) {
  const KeyCopies columns(wide, narrow, shape, copies);
  const ProfileSpan span("copy_key_heads", [&] { return traffic({&wide, &narrow}); });
  host::dispatch(wide.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    host::parallel_for(wide.dim(0), [&](int64_t row) {
      const T* in = static_cast<const T*>(narrow.data) + row * narrow.dim(1);
      T* out = static_cast<T*>(wide.data) + row * wide.dim(1);
      out = std::copy(in, in + columns.queries, out);
      for (const T* head = in + columns.queries; head < in + narrow.dim(1); head += columns.width) {
        for (int64_t i = 0; i < copies; ++i) out = std::copy(head, head + columns.width, out);
      }
    });
  });
}

void add_key_heads(const Tensor& narrow, const Tensor& wide, const AttentionShape& shape, int64_t copies,
                   Stream& /*stream*/) {
  const KeyCopies columns(wide, narrow, shape, copies);
  const ProfileSpan span("add_key_heads", [&] { return traffic({&wide, &narrow}); });
  host::dispatch(wide.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    host::parallel_for(wide.dim(0), [&](int64_t row) {
      const T* in = static_cast<const T*>(wide.data) + row * wide.dim(1);
      T* out = static_cast<T*>(narrow.data) + row * narrow.dim(1);
      std::copy(in, in + columns.queries, out);
      for (int64_t c = columns.queries; c < narrow.dim(1); ++c) {
        const T* first = in + columns.wide_column(c);
        host::store(out + c, columns.sum([&](int64_t i) { return host::load(first + i * columns.width); }));
      }
    });
  });
}

}  // namespace llmtrain
