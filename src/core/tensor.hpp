#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace llmtrain {

/// Non-owning, contiguous, row-major view of at most four dimensions. It is a POD and may be copied freely.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{};

  Tensor() = default;
  Tensor(void* pointer, DType type, std::initializer_list<int64_t> dims) : data(pointer), dtype(type) {
    LLMTRAIN_CHECK(dims.size() <= 4, "a tensor has at most four dimensions");
    for (int64_t d : dims) shape[static_cast<size_t>(rank++)] = d;
  }

  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  bool empty() const { return data == nullptr; }

  /// Typed access; the element type must be that of the tensor.
  template <class T>
  T* as() const {
    LLMTRAIN_CHECK(dtype_of<std::remove_const_t<T>> == dtype, "tensor accessed as another dtype");
    return static_cast<T*>(data);
  }

  /// Rows [begin, begin + count) of the first dimension.
  Tensor rows(int64_t begin, int64_t count) const {
    LLMTRAIN_CHECK(rank > 0 && begin >= 0 && count >= 0 && begin + count <= dim(0), "rows outside of the tensor");
    Tensor t = *this;
    const int64_t stride = rank == 0 || dim(0) == 0 ? 0 : numel() / dim(0);
    t.data = static_cast<char*>(data) + begin * stride * static_cast<int64_t>(size_of(dtype));
    t.shape[0] = count;
    return t;
  }
  /// Reshapes to the same number of elements.
  Tensor reshaped(std::initializer_list<int64_t> dims) const {
    Tensor t(data, dtype, dims);
    LLMTRAIN_CHECK(t.numel() == numel(), "reshape changes the number of elements");
    return t;
  }
};

}  // namespace llmtrain
