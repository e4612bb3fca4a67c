#include "kernels/cuda/launch.cuh"
#include "kernels/head_groups.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Copies one element of the row by groups, or to it.
template <class T>
struct MoveHeads {
  T* to;
  const T* from;
  HeadGroups groups;
  int64_t columns, width;
  bool by_groups;
  __device__ void operator()(int64_t at) const {
    const int64_t row = at / columns, column = at % columns;
    const int64_t place = row * columns + groups.place(column / width) * width + column % width;
    to[by_groups ? at : place] = from[by_groups ? place : at];
  }
};

}  // namespace

void ungroup_heads(const Tensor& qkv, const Tensor& groups, const AttentionShape& shape, Stream& stream) {
  const HeadGroups places = check_groups(qkv, groups, shape);
  dispatch(qkv, [&]<class T>(T* out) {
    for_each(qkv.numel(), stream,
             MoveHeads<T>{out, static_cast<const T*>(groups.data), places, qkv.dim(1), shape.head_dim, false});
  });
}

void group_heads(const Tensor& groups, const Tensor& qkv, const AttentionShape& shape, Stream& stream) {
  const HeadGroups places = check_groups(qkv, groups, shape);
  dispatch(groups, [&]<class T>(T* out) {
    for_each(qkv.numel(), stream,
             MoveHeads<T>{out, static_cast<const T*>(qkv.data), places, qkv.dim(1), shape.head_dim, true});
  });
}

}  // namespace llmtrain
