#pragma once
// Transfers for updates on the host when the state of a GPU is offloaded: gradients come from the device, weights go
// there, piece by piece, while other pieces are updated.

#include <array>

#include "device/device.hpp"
#include "params/offload/offload_ring.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

class OffloadTransfers {
 public:
  static constexpr size_t slots = OffloadRing::slots;

  explicit OffloadTransfers(int64_t piece_elements);
  /// Bytes of pinned memory.
  static int64_t bytes(int64_t piece_elements);

  // Sequence of a pass: begin; fetch of the first pieces; for each piece take, work, give_back; hand_over at least at
  // the end. `on_device` holds the tensors of the piece on the device: its gradient, and master and weights if these
  // are not offloaded.
  void begin(Stream& main);
  void fetch(size_t piece, const ParamShard& on_device);
  /// Waits, and replaces the tensors of `on_device` in `shard` by copies in host memory.
  void take(size_t piece, const ParamShard& on_device, ParamShard& shard);
  void give_back(size_t piece, const ParamShard& on_device);
  /// Orders all pieces returned so far before later work in `main`.
  void hand_over(Stream& main);

 private:
  struct Slot {
    Stream stream;
    Event given;                                                      ///< end of the copy back
    char *gradient = nullptr, *master = nullptr, *weights = nullptr;  ///< pinned
  };
  Slot& slot(size_t piece) { return slots_[piece % slots]; }

  PinnedBuffer memory_;
  std::array<Slot, slots> slots_;
  Event ready_;
};

}  // namespace llmtrain
