#include "kernels/head_groups.hpp"

#include <cstring>

#include "core/profile.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

/// Copies heads of rows: from their places to those by groups, or back.
void move_heads(const Tensor& to, const Tensor& from, const HeadGroups& groups, int64_t head_dim, bool by_groups) {
  const auto bytes = static_cast<size_t>(head_dim) * size_of(to.dtype);
  const size_t row_bytes = static_cast<size_t>(to.dim(1)) * size_of(to.dtype);
  const int64_t heads = groups.heads + 2 * groups.kv_heads;
  host::parallel_for(to.dim(0), [&](int64_t row) {
    char* out = static_cast<char*>(to.data) + static_cast<size_t>(row) * row_bytes;
    const char* in = static_cast<const char*>(from.data) + static_cast<size_t>(row) * row_bytes;
    for (int64_t head = 0; head < heads; ++head) {
      const auto grouped = static_cast<size_t>(head), place = static_cast<size_t>(groups.place(head));
      std::memcpy(out + (by_groups ? grouped : place) * bytes, in + (by_groups ? place : grouped) * bytes, bytes);
    }
  });
}

}  // namespace

void ungroup_heads(const Tensor& qkv, const Tensor& groups, const AttentionShape& shape, Stream& /*stream*/) {
  const ProfileSpan span("ungroup_heads", [&] { return traffic({&qkv, &groups}); });
  move_heads(qkv, groups, check_groups(qkv, groups, shape), shape.head_dim, false);
}

void group_heads(const Tensor& groups, const Tensor& qkv, const AttentionShape& shape, Stream& /*stream*/) {
  const ProfileSpan span("group_heads", [&] { return traffic({&qkv, &groups}); });
  move_heads(groups, qkv, check_groups(qkv, groups, shape), shape.head_dim, true);
}

}  // namespace llmtrain
