// Passes over the state of all trained units: whole if it lies with the device, else piece by piece.
//
// On the host a piece is processed in the buffer it was read to. On a GPU kernels work on a copy of it; but if the
// moments are offloaded, the host makes the update, on its own copy, while gradients and weights of other pieces
// travel, and while the device makes the next forward pass with the units that are updated. (Not during the backward
// pass before: the clipping factor, and whether the update takes place at all, are known only after its end.)

#include <utility>

#include "kernels/elementwise.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

bool ParamStore::State::on_device(Access access) const {
  return !device_memory_is_host() && !(access == Access::update && updates_on_host());
}

void ParamStore::State::begin_pass(Access access) {
  pass = {access, -1};
  const bool changes = access == Access::change || access == Access::update;
  if (changes && ahead != nullptr) ahead->forget();
  if (ring != nullptr) {
    ring->begin({0, access == Access::masters ? size_t{1} : options.states.size(), 0, changes ? offloaded.kinds() : 0});
  }
  if (on_device(access) || transfers == nullptr) return;
  transfers->begin(*stream);
  for (size_t p = 0; p < std::min(OffloadTransfers::slots, offloaded.pieces().size()); ++p) {
    transfers->fetch(p, resident_part(offloaded.pieces()[p]));
  }
}

/// Moves to the next piece; returns false at the end.
bool ParamStore::State::next_piece(Shard& shard) {
  const std::vector<OffloadPiece>& pieces = offloaded.pieces();
  if (pass.piece >= 0) leave_piece();
  if (ring != nullptr ? !ring->next() : pass.piece + 1 == static_cast<int64_t>(pieces.size())) {
    if (!on_device(pass.access) && transfers != nullptr) transfers->hand_over(*stream);
    pass.piece = -1;
    return false;
  }
  const auto index = static_cast<size_t>(++pass.piece);
  const OffloadPiece& piece = pieces[index];
  shard = resident_part(piece);
  char* memory = memory_of(piece);
  if (on_device(pass.access)) {
    copy_to_device(device_piece.data, memory, offloaded.bytes_of(piece, 0, offloaded.kinds()), *stream);
    memory = static_cast<char*>(device_piece.data);
  } else if (transfers != nullptr) {
    transfers->take(index, resident_part(piece), shard);
  }
  add_offloaded(shard, piece, memory);
  return true;
}

/// Stores the changes of the current piece.
void ParamStore::State::leave_piece() {
  const std::vector<OffloadPiece>& pieces = offloaded.pieces();
  const auto index = static_cast<size_t>(pass.piece);
  const OffloadPiece& piece = pieces[index];
  if (on_device(pass.access)) {
    const bool changes = pass.access == Access::change || pass.access == Access::update;
    const int64_t bytes = offloaded.bytes_of(piece, 0, offloaded.kinds());
    if (changes) copy_to_host(memory_of(piece), device_piece.data, bytes, *stream);
    stream->synchronize();
  } else if (transfers != nullptr) {
    transfers->give_back(index, resident_part(piece));
    const size_t next = index + OffloadTransfers::slots;
    if (next < pieces.size()) transfers->fetch(next, resident_part(pieces[next]));
  }
}

/// True if updates are deferred. Weights that are prefetched from the file must be all from before the update or all
/// from after it.
bool ParamStore::State::updates_late() const { return updates_on_host() && !reads_weights_ahead(); }

/// Updates all units up to this one, and starts the transfer of their weights.
void ParamStore::State::update_through(int unit) {
  while (late_update && late_update->updated <= unit) {
    const bool more = late_update->pass.next();  // the previous piece is in transfer to the device
    const int updated = more ? late_update->pass.unit() : static_cast<int>(units.size());
    if (transfers != nullptr) transfers->hand_over(*stream);
    for (int u = late_update->updated; u < updated && policy.whole_weights && !policy.whole_state; ++u) {
      if (at(u).trained()) gathers[static_cast<size_t>(u)] = gather(at(u), at(u).weights);
    }
    late_update->updated = updated;
    if (more) {
      late_update->work(late_update->pass.unit(), late_update->pass.shard());
    } else {
      late_update.reset();
    }
  }
}

void ParamStore::update(ShardWork work) {
  State& s = *state_;
  finish_update();
  s.expect_unused();
  if (s.updates_late()) {
    if (!s.policy.whole_weights) s.forget_gathered(true);
    s.late_update.emplace(*this, std::move(work));
    return;
  }
  for (StatePass pass(*this, Access::update); pass.next();) work(pass.unit(), pass.shard());
  s.expect_unused();
  s.publish_trained();
}

void ParamStore::begin_change() {
  finish_update();
  if (state_->policy.whole_weights) state_->finish_gathers();
}

void ParamStore::finish_update() { state_->update_through(unit_count() - 1); }

ParamStore::StatePass::StatePass(ParamStore& store, Access access)
    : store_(store), pieces_(store.state_->needs_offloaded(access)) {
  store.finish_update();
  if (access == Access::change || access == Access::update) store.begin_change();
  if (pieces_) store.state_->begin_pass(access);
}

ParamStore::StatePass::~StatePass() {
  if (pieces_ && store_.state_->ring != nullptr) store_.state_->ring->abandon();
}

bool ParamStore::StatePass::next() {
  State& s = *store_.state_;
  if (!pieces_) {
    if (unit_ >= 0 && ++segment_ < store_.segment_count(unit_)) {
      shard_ = store_.shard(unit_, segment_);
      return true;
    }
    do {
      if (++unit_ == store_.unit_count()) return false;
    } while (!store_.trained(unit_));
    segment_ = 0;
    shard_ = store_.shard(unit_, segment_);
    return true;
  }
  if (!s.next_piece(shard_)) return false;
  const OffloadPiece& piece = s.offloaded.pieces()[static_cast<size_t>(s.pass.piece)];
  unit_ = piece.unit;
  segment_ = piece.segment;
  return true;
}

}  // namespace llmtrain
