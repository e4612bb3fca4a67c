#include "params/param_store.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/activity.hpp"
#include "kernels/elementwise.hpp"
#include "params/initialize_units.hpp"
#include "params/offload/offload_transfers.hpp"

namespace llmtrain {

ParamStore::ParamStore(std::vector<UnitSpec> units, const ParamStoreOptions& options)
    : units_(std::move(units), options),
      gathers_(units_),
      reducer_(units_, gathers_),
      offload_(units_),
      state_(units_, offload_, reducer_, gathers_),
      weights_(units_, state_, gathers_) {}

void ParamStore::plan(Arena& arena) {
  state_.plan_weights(arena);
  weights_.plan(arena);
  state_.plan_states(arena);
  offload_.plan(arena);
  reducer_.plan(arena);
}

void ParamStore::start(Communicator& ranks, Stream& stream, Communicator* job, Transfer::Meanwhile meanwhile,
                       Communicator* sharing) {
  LLMTRAIN_CHECK(ranks.size() == options_.size && ranks.rank() == options_.rank,
                 "the parameter store was planned for another rank or number of ranks");
  LLMTRAIN_CHECK(job == nullptr || job->size() == options_.size * options_.ranks_of_blocks(),
                 "the job has other ranks than those that share its matrices and experts");
  stream_ = &stream;
  job_ = job;
  state_.start(stream);
  int64_t largest = reducer_.max_exchange_bytes();  // sent and received
  for (const UnitState& u : units_) largest = std::max(largest, u.storage.bytes(u.layout.elements()));
  ranks.reserve(largest);
  if (!meanwhile) meanwhile = [this] { reducer_.add_arrived(); };
  gathers_.start(ranks, stream, std::move(meanwhile));
  reducer_.start(stream, sharing);
  offload_.start(stream);
}

void ParamStore::initialize(uint64_t seed, bool frozen) {
  for (StatePass pass = state_pass(Access::change); pass.next();) {
    const Shard& shard = pass.shard();
    initialize_range(units_[pass.unit()], shard.begin, shard.end, shard.master(), seed, *stream_);
    if (!shard.weights.empty() && shard.master().numel() > 0) cast(shard.weights, shard.master(), *stream_);
  }
  if (!frozen) return;
  for (const UnitState& u : units_) {
    if (u.trained()) continue;
    u.quantized() ? initialize_quantized(u, seed, options_.offload_piece, gathers_.communicator(), *stream_)
                  : initialize_frozen(u, seed, options_.offload_piece, *stream_);
  }
  publish_weights();
}

void ParamStore::prefetch(int unit) {
  reducer_.complete_arrived();
  update_through(unit);
  weights_.prefetch(unit);
}

void ParamStore::acquire(int unit) {
  report_progress();
  reducer_.complete_arrived();
  update_through(unit);
  weights_.acquire(unit);
}

// A deferred update reads the last step's gradient: it ends before a gradient is written or reduced.

Tensor ParamStore::gradient(int unit, int param) {
  finish_update();
  return reducer_.gradient(unit, param);
}

ParamStore::RowBlocks ParamStore::row_blocks(int unit, int param) {
  finish_update();
  return {reducer_, unit, param};
}

void ParamStore::join_reductions(int unit) {
  if (!reducer_.joins(unit)) return;
  finish_update();
  reducer_.join(unit);
}

void ParamStore::reduce(int unit) {
  if (!units_[unit].trained()) return;
  finish_update();
  reducer_.reduce(unit);
}

std::optional<uint64_t> ParamStore::pass_key() const {
  if (!reducer_.repeats() || late_update_ || !reducer_.is_replayable()) return std::nullopt;
  return reducer_.pass_key();
}

void ParamStore::mark_passes_done() {
  LLMTRAIN_CHECK(pass_key().has_value(), "these passes cannot be a graph");
  reducer_.mark_passes_done();
}

void ParamStore::repeat_micro_batch() {
  LLMTRAIN_CHECK(pass_key().has_value(), "these passes cannot be a graph");
  reducer_.repeat_micro_batch();
}

ParamStore::StatePass ParamStore::state_pass(Access access) {
  finish_update();
  if (access == Access::change || access == Access::update) begin_change();
  return {state_, access};
}

/// Updates all units up to this one, and starts the transfer of their weights.
void ParamStore::update_through(int unit) {
  while (late_update_ && late_update_->updated <= unit) {
    const bool more = late_update_->pass.next();  // the previous piece is in transfer to the device
    const int updated = more ? late_update_->pass.unit() : units_.size();
    if (offload_.transfers() != nullptr) offload_.transfers()->hand_over(*stream_);
    weights_.publish_units(late_update_->updated, updated);
    late_update_->updated = updated;
    if (more) {
      late_update_->work(late_update_->pass.unit(), late_update_->pass.shard());
    } else {
      late_update_.reset();
    }
  }
}

void ParamStore::update(ShardWork work) {
  begin_change();
  weights_.expect_unused();
  // Weights that are prefetched from a file must be all from before the update or all from after it.
  if (offload_.updates_on_host() && !offload_.reads_weights_ahead()) {
    if (!policy_.whole_weights) weights_.forget(true);
    late_update_.emplace(state_, std::move(work));
    return;
  }
  for (StatePass pass(state_, Access::update); pass.next();) work(pass.unit(), pass.shard());
  weights_.publish(true);
}

void ParamStore::begin_change() {
  finish_update();
  if (policy_.whole_weights) gathers_.finish_all();
}

void ParamStore::read_state(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const {
  LLMTRAIN_CHECK(!late_update_, "state is accessed before finish_update()");
  state_.read(unit, plane, begin, count, out, stream);
}

void ParamStore::write_state(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream) {
  LLMTRAIN_CHECK(!late_update_, "state is accessed before finish_update()");
  state_.write(unit, plane, begin, count, values, stream);
}

void ParamStore::round_masters() {
  if (!policy_.rounded_shard && (policy_.own_master || !policy_.whole_weights)) return;
  for (StatePass pass = state_pass(Access::change); pass.next();) {
    const Shard& shard = pass.shard();
    if (shard.master().numel() > 0) cast(shard.weights, shard.master(), *stream_);
  }
}

void ParamStore::publish_weights() {
  finish_update();
  weights_.expect_unused();
  weights_.publish(true);
  weights_.publish(false);
}

void ParamStore::publish_masters() {
  finish_update();
  for (int unit = 0; unit < units_.size() && policy_.whole_state && options_.size > 1; ++unit) {
    if (!units_[unit].trained()) continue;
    if (offload_.has(master_plane)) {
      share_masters(unit);
      continue;
    }
    for (const UnitSegment& s : units_[unit].segments) {
      gathers_.communicator().all_gather(s.master(), s.borders, *stream_).finish(*stream_);
    }
  }
  round_masters();
  publish_weights();
}

/// Gathers offloaded masters that every rank keeps whole; each has written the part that it owns.
void ParamStore::share_masters(int unit) {
  const UnitState& u = units_[unit];
  std::vector<float> values(static_cast<size_t>(std::min(options_.offload_piece, u.layout.elements())));
  for (size_t i = 0; i + 1 < u.borders.size(); ++i) {
    const int r = static_cast<int>(i) % options_.size;
    const int64_t last = u.borders[i + 1];
    for (int64_t at = u.borders[i]; at < last; at += options_.offload_piece) {
      const int64_t count = std::min(options_.offload_piece, last - at);
      if (r == options_.rank) read_state(unit, master_plane, at, count, values.data(), *stream_);
      gathers_.communicator().broadcast(values.data(), count * static_cast<int64_t>(sizeof(float)), r);
      if (r != options_.rank) write_state(unit, master_plane, at, count, values.data(), *stream_);
    }
  }
}

void ParamStore::gather_range(int model_unit, int64_t first, int64_t last, float* out) {
  finish_update();
  const int unit = units_.store_unit(model_unit), owner = units_.first_owner(model_unit);
  std::exception_ptr failure;
  if (unit >= 0 && units_.counts(unit)) {
    try {
      gather_from_owners(unit, first, last, out);
    } catch (const UserError&) {  // rank 0 waits for a message
      failure = std::current_exception();
    }
  }
  if (owner != 0) job_->copy_between(out, (last - first) * static_cast<int64_t>(sizeof(float)), owner, 0);
  if (failure) std::rethrow_exception(failure);
}

/// Sends elements of a unit to the first of the ranks that have it.
void ParamStore::gather_from_owners(int unit, int64_t first, int64_t last, float* out) {
  const UnitState& u = units_[unit];
  LLMTRAIN_CHECK(first >= 0 && first <= last && last <= u.layout.elements(), "elements outside of " + u.spec.name);
  Communicator& communicator = gathers_.communicator();
  const auto read = [&](int64_t begin, int64_t end) {
    read_state(unit, master_plane, begin, end - begin, out + (begin - first), *stream_);
  };
  if (policy_.whole_state) {
    gathers_.finish(unit);  // frozen weights may still be on their way
    for (const UnitSegment& s : u.segments) {
      if (options_.rank != 0) break;
      const int64_t begin = std::max(first, s.first), end = std::min(last, s.last);
      if (begin < end) read(begin, end);
    }
    return;
  }
  std::exception_ptr failure;
  for (size_t i = 0; i + 1 < u.borders.size(); ++i) {
    const int64_t begin = std::max(first, u.borders[i]), end = std::min(last, u.borders[i + 1]);
    if (begin >= end) continue;
    const int owner = static_cast<int>(i) % options_.size;
    try {
      if (owner == options_.rank) read(begin, end);
    } catch (const UserError&) {  // rank 0 waits for a message
      failure = std::current_exception();
    }
    communicator.copy_between(out + (begin - first), (end - begin) * static_cast<int64_t>(sizeof(float)), owner, 0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace llmtrain
