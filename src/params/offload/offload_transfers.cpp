#include "params/offload/offload_transfers.hpp"

namespace llmtrain {

namespace {

constexpr int64_t parts = 3;  ///< buffers of a slot: gradient, master and weights, each with room for fp32

Tensor at(char* data, const Tensor& like) { return {data, like.dtype, {like.numel()}}; }

}  // namespace

int64_t OffloadTransfers::bytes(int64_t piece_elements) {
  return static_cast<int64_t>(slots) * parts * piece_elements * static_cast<int64_t>(sizeof(float));
}

OffloadTransfers::OffloadTransfers(int64_t piece_elements) : memory_(bytes(piece_elements)) {
  char* next = static_cast<char*>(memory_.data());
  for (Slot& slot : slots_) {
    for (char** part : {&slot.gradient, &slot.master, &slot.weights}) {
      *part = next;
      next += piece_elements * static_cast<int64_t>(sizeof(float));
    }
  }
}

void OffloadTransfers::begin(Stream& main) {
  ready_.record(main);
  for (Slot& slot : slots_) {
    ready_.wait(slot.stream);
    slot.given.record(slot.stream);
  }
}

void OffloadTransfers::fetch(size_t piece, const ParamShard& on_device) {
  Slot& s = slot(piece);
  copy_to_host(s.gradient, on_device.gradient.data, on_device.gradient.bytes(), s.stream);
  if (!on_device.master().empty())
    copy_to_host(s.master, on_device.master().data, on_device.master().bytes(), s.stream);
}

void OffloadTransfers::take(size_t piece, const ParamShard& on_device, ParamShard& shard) {
  Slot& s = slot(piece);
  s.stream.synchronize();
  shard.gradient = at(s.gradient, on_device.gradient);
  if (!on_device.master().empty()) shard.states[master_plane] = at(s.master, on_device.master());
  if (!on_device.weights.empty()) shard.weights = at(s.weights, on_device.weights);
  shard.on_host = true;
}

void OffloadTransfers::give_back(size_t piece, const ParamShard& on_device) {
  Slot& s = slot(piece);
  if (!on_device.master().empty())
    copy_to_device(on_device.master().data, s.master, on_device.master().bytes(), s.stream);
  if (!on_device.weights.empty())
    copy_to_device(on_device.weights.data, s.weights, on_device.weights.bytes(), s.stream);
  s.given.record(s.stream);
}

void OffloadTransfers::hand_over(Stream& main) {
  for (Slot& slot : slots_) slot.given.wait(main);
}

}  // namespace llmtrain
