#pragma once
// Where the state of a device is offloaded, the host updates it: gradients come from the device, weights go there,
// piece by piece, while other pieces are worked on.

#include <array>

#include "device/device.hpp"
#include "params/offload_ring.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

class OffloadTransfers {
 public:
  static constexpr size_t slots = OffloadRing::slots;

  explicit OffloadTransfers(int64_t piece_elements);
  /// Of pinned memory.
  static int64_t bytes(int64_t piece_elements);

  // A pass: begin; fetch of the first pieces; for each piece take, work, give_back; hand_over at the end at least.
  // `on_device` is what the device has of the piece: its gradient, and master and weights where these are not
  // offloaded.
  void begin(Stream& main);
  void fetch(size_t piece, const ParamStore::Shard& on_device);
  /// Waits; what `on_device` has then lies in host memory, in place of it in `shard`.
  void take(size_t piece, const ParamStore::Shard& on_device, ParamStore::Shard& shard);
  void give_back(size_t piece, const ParamStore::Shard& on_device);
  /// What was given back so far is there for what `main` is given from now on.
  void hand_over(Stream& main);

 private:
  struct Slot {
    Stream stream;
    Event given;                                                      ///< back
    char *gradient = nullptr, *master = nullptr, *weights = nullptr;  ///< pinned
  };
  Slot& slot(size_t piece) { return slots_[piece % slots]; }

  PinnedBuffer memory_;
  std::array<Slot, slots> slots_;
  Event ready_;
};

}  // namespace llmtrain
