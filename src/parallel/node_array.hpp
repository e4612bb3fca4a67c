#pragma once
// Arrays that rank 0 makes and every rank reads: one copy in the memory of each node.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

/// Values that do not change. Copies of the object share them.
template <class T>
class NodeArray {
 public:
  NodeArray() = default;
  NodeArray(std::vector<T> values) {
    const auto own = std::make_shared<const std::vector<T>>(std::move(values));
    values_ = *own;
    memory_ = own;
  }
  /// Collective: rank 0's values, on every rank.
  NodeArray shared(Communicator& ranks) const {
    if (ranks.size() == 1) return *this;
    int64_t count = std::ssize(values_);
    ranks.broadcast(&count, sizeof(count));
    NodeArray all;
    all.memory_ = ranks.share_in_nodes(values_.data(), count * static_cast<int64_t>(sizeof(T)));
    all.values_ = {static_cast<const T*>(all.memory_.get()), static_cast<size_t>(count)};
    return all;
  }

  std::span<const T> values() const { return values_; }
  bool empty() const { return values_.empty(); }
  size_t size() const { return values_.size(); }
  const T& operator[](size_t i) const { return values_[i]; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::shared_ptr<const void> memory_;
  std::span<const T> values_;
};

/// Collective: the values that `make` returns on rank 0, a std::vector<T>; its UserError is thrown on all ranks.
template <class T, class Make>
NodeArray<T> make_node_array(Communicator& ranks, const Make& make) {
  NodeArray<T> values;
  on_root(ranks, [&] { values = NodeArray<T>(make()); });
  return values.shared(ranks);
}

}  // namespace llmtrain
