#pragma once
// Copies of a micro-batch between a GPU and host memory by way of pinned memory: the host waits once for all of them.

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

class PinnedCopies {
 public:
  /// Queues a copy of the first `count` values of a tensor, which may be empty; finish() fills the vector.
  template <class T>
  void fetch(std::vector<T>& to, const Tensor& from, int64_t count, Stream& stream) {
    to.resize(static_cast<size_t>(from.empty() ? 0 : count));
    const Slot& slot = fetched_.next(to.data(), static_cast<int64_t>(to.size() * sizeof(T)));
    if (slot.bytes > 0) copy_to_host(slot.memory.data(), from.data, slot.bytes, stream);
  }
  /// Waits for the stream: the vectors have their values, and earlier uploads have passed.
  void finish(Stream& stream) {
    stream.synchronize();
    for (size_t i = 0; i < fetched_.used; ++i) {
      const Slot& slot = fetched_.slots[i];
      if (slot.bytes > 0) std::memcpy(slot.to, slot.memory.data(), static_cast<size_t>(slot.bytes));
    }
    fetched_.used = uploaded_.used = 0;
  }
  /// Queues a copy to all of a tensor; the host memory may be reused when the call returns.
  void upload(const Tensor& to, const void* from, Stream& stream) {
    if (to.empty()) return;
    const Slot& slot = uploaded_.next(nullptr, to.bytes());
    std::memcpy(slot.memory.data(), from, static_cast<size_t>(slot.bytes));
    copy_to_device(to.data, slot.memory.data(), slot.bytes, stream);
  }

 private:
  struct Slot {
    PinnedBuffer memory;
    void* to = nullptr;
    int64_t bytes = 0;
  };
  struct Slots {
    std::vector<Slot> slots;
    size_t used = 0;

    /// Memory that no copy in flight uses.
    Slot& next(void* to, int64_t bytes) {
      if (used == slots.size()) slots.emplace_back();
      Slot& slot = slots[used++];
      if (slot.memory.bytes() < bytes) slot.memory = PinnedBuffer(std::max(bytes, 2 * slot.memory.bytes()));
      slot.to = to;
      slot.bytes = bytes;
      return slot;
    }
  };

  Slots fetched_, uploaded_;
};

}  // namespace llmtrain
