// Passes over the state of all trained units: whole if it lies with the device, else piece by piece.
//
// On the host a piece is processed in the buffer it was read to. On a GPU kernels work on a copy of it; but if the
// moments are offloaded, the host makes the update, on its own copy, while gradients and weights of other pieces
// travel, and while the device makes the next forward pass with the units that are updated. (Not during the backward
// pass before: the clipping factor, and whether the update takes place at all, are known only after its end.)

#include <algorithm>

#include "params/offload/offload_transfers.hpp"
#include "params/state_store.hpp"

namespace llmtrain {

StateStore::Pass::Pass(StateStore& store, StateAccess access)
    : store_(store),
      access_(access),
      pieces_(store.offload_.has(master_plane) || (access != StateAccess::masters && store.offload_.has_moments())),
      on_device_(!device_memory_is_host() && !(access == StateAccess::update && store.offload_.updates_on_host())) {
  if (!pieces_) return;
  store_.offload_.begin_pass(access == StateAccess::masters ? 1 : store_.options_.states.size(), changes());
  OffloadTransfers* transfers = store_.offload_.transfers();
  if (on_device_ || transfers == nullptr) return;
  transfers->begin(*store_.stream_);
  const size_t count = std::min(OffloadTransfers::slots, store_.offload_.layout().pieces().size());
  for (size_t p = 0; p < count; ++p) transfers->fetch(p, resident_part(p));
}

StateStore::Pass::~Pass() {
  if (pieces_) store_.offload_.abandon_pass();
}

bool StateStore::Pass::next() { return pieces_ ? next_piece() : next_whole(); }

bool StateStore::Pass::next_whole() {
  const UnitStates& units = store_.units_;
  if (unit_ < 0 || ++segment_ == units[unit_].segments.size()) {
    do {
      if (++unit_ == units.size()) return false;
    } while (!units[unit_].trained());
    segment_ = 0;
  }
  shard_ = store_.shard(unit_, segment_);
  return true;
}

/// Tensors of the piece that are not offloaded.
ParamShard StateStore::Pass::resident_part(size_t index) const {
  const OffloadPiece& p = piece(index);
  return store_.shard(p.unit, p.segment).part(p.begin, p.end);
}

bool StateStore::Pass::next_piece() {
  OffloadStore& offload = store_.offload_;
  OffloadTransfers* transfers = offload.transfers();
  if (piece_ >= 0) leave_piece();
  const auto index = static_cast<size_t>(++piece_);
  if (!offload.next_piece(index)) {
    if (!on_device_ && transfers != nullptr) transfers->hand_over(*store_.stream_);
    piece_ = -1;
    return false;
  }
  shard_ = resident_part(index);
  char* memory = offload.memory_of(piece(index));
  if (on_device_) {
    const Tensor& copy = offload.device_piece();
    copy_to_device(copy.data, memory, offload.layout().bytes_of(piece(index), 0, offload.layout().kinds()),
                   *store_.stream_);
    memory = static_cast<char*>(copy.data);
  } else if (transfers != nullptr) {
    transfers->take(index, resident_part(index), shard_);
  }
  offload.add_tensors(shard_, piece(index), memory);
  unit_ = piece(index).unit;
  segment_ = piece(index).segment;
  return true;
}

/// Stores the changes of the current piece.
void StateStore::Pass::leave_piece() {
  const OffloadStore& offload = store_.offload_;
  const auto index = static_cast<size_t>(piece_);
  if (on_device_) {
    const int64_t bytes = offload.layout().bytes_of(piece(index), 0, offload.layout().kinds());
    if (changes()) copy_to_host(offload.memory_of(piece(index)), offload.device_piece().data, bytes, *store_.stream_);
    store_.stream_->synchronize();
  } else if (OffloadTransfers* transfers = offload.transfers(); transfers != nullptr) {
    transfers->give_back(index, resident_part(index));
    const size_t next = index + OffloadTransfers::slots;
    if (next < offload.layout().pieces().size()) transfers->fetch(next, resident_part(next));
  }
}

}  // namespace llmtrain
