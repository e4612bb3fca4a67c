// Offloaded state: passes over it piece by piece, and access to element ranges of it.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/profile.hpp"
#include "kernels/elementwise.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

namespace {

char* aligned(void* memory) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t alignment = OffloadLayout::alignment;
  return static_cast<char*>(memory) + (alignment - at % alignment) % alignment;
}

}  // namespace

void ParamStore::State::reserve_disk() {
  if (!policy.on_disk || offloaded.empty() || file != nullptr) return;
  std::vector<std::string> names;
  names.reserve(units.size());
  for (const UnitState& u : units) names.push_back(u.spec.name);
  file = std::make_unique<OffloadFile>(offloaded, options.offload_path, std::move(names));
}

/// Bytes of host memory: pieces in transfer, weights of a unit, and one kind of a piece.
int64_t ParamStore::State::ring_bytes() const {
  if (!policy.on_disk) return 0;
  const int64_t weights = reads_weights_ahead() ? OffloadAhead::bytes(offloaded, weights_kind()) : 0;
  return static_cast<int64_t>(OffloadRing::slots) * offloaded.max_piece() + weights + offloaded.max_part() +
         OffloadLayout::alignment;
}

/// Kind from which gathered weights are taken.
size_t ParamStore::State::weights_kind() const { return policy.rounded_shard ? rounded_kind() : master_plane; }

bool ParamStore::State::reads_weights_ahead() const {
  return policy.on_disk && !policy.whole_weights && policy.offloaded[weights_kind()];
}

int64_t ParamStore::State::pinned_bytes() const {
  if (offloaded.empty() || device_memory_is_host()) return 0;
  const int64_t state = policy.on_disk ? ring_bytes() : offloaded.bytes();
  return state + (updates_on_host() ? OffloadTransfers::bytes(options.offload_piece) : 0);
}

void ParamStore::State::start_offload() {
  if (offloaded.empty()) return;
  reserve_disk();
  void* memory = ring_memory.data;
  if (!device_memory_is_host()) {
    pinned = PinnedBuffer(policy.on_disk ? ring_bytes() : offloaded.bytes());
    memory = pinned.data();
    if (updates_on_host()) transfers = std::make_unique<OffloadTransfers>(options.offload_piece);
  }
  host_memory = policy.on_disk ? aligned(memory) : static_cast<char*>(memory);  // only the ring has room for alignment
  if (!policy.on_disk) return;
  std::array<char*, OffloadRing::slots> buffers{};
  for (char*& buffer : buffers) {
    buffer = host_memory;
    host_memory += offloaded.max_piece();
  }
  ring = std::make_unique<OffloadRing>(*file, buffers);
  if (reads_weights_ahead()) {
    ahead = std::make_unique<OffloadAhead>(*file, weights_kind(), host_memory);
    host_memory += OffloadAhead::bytes(offloaded, weights_kind());
  }
}

bool ParamStore::State::needs_offloaded(Access access) const {
  return policy.offloaded[master_plane] || (access != Access::masters && offloads_moments());
}

/// True if the states other than the master are offloaded, all of them.
bool ParamStore::State::offloads_moments() const {
  return options.states.size() > 1 && policy.offloaded[master_plane + 1];
}

/// True for a GPU with offloaded moments; elsewhere there is no separate host update.
bool ParamStore::State::updates_on_host() const { return offloads_moments() && !device_memory_is_host(); }

int64_t ParamStore::State::bytes_of_kind(const UnitState& u, size_t kind, int64_t begin, int64_t end) const {
  if (kind != rounded_kind()) return u.planes.bytes(kind, begin, end);
  return (end - begin) * static_cast<int64_t>(size_of(options.compute));
}

ParamStore::Shard ParamStore::State::shard_of(const UnitState& u, const UnitSegment& s) const {
  if (!u.trained()) {
    const bool apart = !policy.own_master && !u.quantized();
    return {s.update_begin, s.update_end, s.states, {}, apart ? stored(u, s) : Tensor()};
  }
  const bool whole_sums = policy.gather_sums || policy.gradient_is_sum;
  const bool apart = policy.whole_weights && !policy.own_master;
  const Tensor weights = apart ? part_of(u.weights, s.update_begin, s.update_end) : s.rounded;
  const Tensor sums = whole_sums ? gradient_of(u.parts[s.part], s.first, s.last) : s.total;
  return {s.update_begin, s.update_end, s.states, sums, weights, false, &u.planes};
}

/// Tensors of the piece that are not offloaded.
ParamStore::Shard ParamStore::State::resident_part(const OffloadPiece& piece) const {
  const UnitState& u = at(piece.unit);
  return shard_of(u, u.segments[piece.segment]).part(piece.begin, piece.end);
}

/// Adds the offloaded tensors, which lie at `memory` as in the layout.
void ParamStore::State::add_offloaded(Shard& shard, const OffloadPiece& piece, char* memory) const {
  const UnitState& u = this->at(piece.unit);
  for (size_t kind = 0; kind <= rounded_kind(); ++kind) {
    if (!policy.offloaded[kind]) continue;
    char* at = memory + offloaded.bytes_of(piece, 0, kind);
    if (kind == rounded_kind()) {
      shard.weights = Tensor(at, options.compute, {piece.elements()});
    } else {
      const int64_t values = u.planes.values(kind, piece.begin, piece.end);
      shard.states[kind] = Tensor(at, options.states[kind].dtype, {values});
    }
  }
}

/// Host memory of the pass's current piece; without a disk, of any piece.
char* ParamStore::State::memory_of(const OffloadPiece& piece) const {
  return ring != nullptr ? ring->data() : host_memory + piece.offset;
}

/// Calls visit(host memory, offset in bytes from `begin`, bytes) for the range of each piece that overlaps elements
/// [begin, begin + count) of a kind. Changes are stored if `changes`.
template <class Visit>
void ParamStore::State::each_part(int unit, size_t kind, int64_t begin, int64_t count, bool changes,
                                  const Visit& visit) const {
  if (changes && ahead != nullptr) ahead->forget();
  const std::lock_guard lock(part_mutex);
  const UnitState& u = at(unit);
  for (size_t p = offloaded.pieces_before(unit); p < offloaded.pieces_before(unit + 1); ++p) {
    const OffloadPiece& piece = offloaded.pieces()[p];
    const int64_t from = std::max(begin, piece.begin), to = std::min(begin + count, piece.end);
    if (from >= to) continue;
    char* memory = host_memory;
    if (policy.on_disk) {
      file->read(p, kind, kind + 1, memory);
    } else {
      memory += piece.offset + offloaded.bytes_of(piece, 0, kind);
    }
    visit(memory + bytes_of_kind(u, kind, piece.begin, from), bytes_of_kind(u, kind, begin, from),
          bytes_of_kind(u, kind, from, to));
    if (changes && policy.on_disk) file->write(p, kind, kind + 1, memory);
  }
}

/// Copies this rank's part of gathered weights, rounded to the compute dtype, into the unit's buffer.
void ParamStore::State::take_own_weights(int unit, const Tensor& buffer) {
  UnitState& u = at(unit);
  const bool offloaded_weights = u.trained() && policy.offloaded[weights_kind()];
  if (offloaded_weights && ahead != nullptr) return take_ahead(unit, buffer);
  for (UnitSegment& s : u.segments) {
    if (s.update_begin == s.update_end) continue;
    const Tensor out = u.stored_part(buffer, s.update_begin, s.update_end);
    if (u.quantized()) {
      copy_on_device(out.data, s.rounded.data, out.bytes(), *stream);
    } else if (offloaded_weights) {
      each_part(unit, weights_kind(), s.update_begin, out.numel(), false,
                [&](const char* memory, int64_t at, int64_t bytes) {
                  copy_to_device(static_cast<char*>(out.data) + at, memory, bytes, *stream);
                });
    } else {
      cast(out, !u.trained() || policy.rounded_shard ? s.rounded : s.master(), *stream);
    }
  }
}

/// Units are taken in order, forwards and then backwards: the next one is prefetched. (Frozen ones are not offloaded.)
void ParamStore::State::take_ahead(int unit, const Tensor& buffer) {
  const ProfileSpan span(SpanKind::kernel, "wait for offloaded weights");
  const char* from = ahead->take(unit);
  for (size_t p = offloaded.pieces_before(unit); p < offloaded.pieces_before(unit + 1); ++p) {
    const OffloadPiece& piece = offloaded.pieces()[p];
    const int64_t bytes = bytes_of_kind(at(unit), weights_kind(), piece.begin, piece.end);
    copy_to_device(part_of(buffer, piece.begin, piece.end).data, from, bytes, *stream);
    from += offloaded.bytes_of(piece, weights_kind(), weights_kind() + 1);
  }
  stream->synchronize();  // the memory is reused
  const int direction = unit < last_taken ? -1 : 1, end = static_cast<int>(units.size());
  int next = unit + direction;
  while (next >= 0 && next < end && !at(next).trained()) next += direction;
  ahead->begin(next);
  last_taken = unit;
}

int64_t ParamStore::offloaded_bytes() const { return state_->policy.on_disk ? state_->offloaded.bytes() : 0; }
int64_t ParamStore::pinned_bytes() const { return state_->pinned_bytes(); }
void ParamStore::reserve_disk() { state_->reserve_disk(); }
bool ParamStore::is_offloaded(size_t plane) const { return state_->policy.offloaded[plane]; }

/// Values of a plane that is not offloaded.
Tensor ParamStore::State::resident(const UnitState& u, const UnitSegment& s, size_t plane,
                                   const ShardBorders& elements) const {
  return s.states[plane].rows(u.planes.values(plane, s.update_begin, elements.begin),
                              u.planes.values(plane, elements.begin, elements.end));
}

/// Checks that the elements' values can be copied.
void ParamStore::State::expect_state(int unit, size_t plane, int64_t begin, int64_t count) const {
  const UnitState& u = at(unit);
  LLMTRAIN_CHECK(!late_update, "state is accessed before finish_update()");
  LLMTRAIN_CHECK(plane < options.states.size() && (u.trained() || plane == master_plane), "no such state");
  LLMTRAIN_CHECK(options.states[plane].by_element() || (begin % chunk_elements == 0 && count % chunk_elements == 0),
                 "part of a chunk of " + options.states[plane].name);
}

void ParamStore::read_state(int unit, size_t plane, int64_t begin, int64_t count, void* out, Stream& stream) const {
  const UnitState& u = state_->at(unit);
  state_->expect_state(unit, plane, begin, count);
  if (u.quantized()) return read_dequantized(unit, begin, count, static_cast<float*>(out), stream);
  const UnitSegment& s = state_->segment_of(u, begin, count);
  if (!u.trained() && !state_->policy.own_master) {
    const Tensor from = part_of(state_->stored(u, s), begin - s.update_begin, begin - s.update_begin + count);
    std::vector<uint16_t> values(static_cast<size_t>(count));
    copy_to_host(values.data(), from.data, from.bytes(), stream);
    stream.synchronize();
    return widen(from.dtype, values.data(), count, static_cast<float*>(out));
  }
  if (u.trained() && is_offloaded(plane)) {
    return state_->each_part(unit, plane, begin, count, false, [&](const char* memory, int64_t at, int64_t bytes) {
      std::memcpy(static_cast<char*>(out) + at, memory, static_cast<size_t>(bytes));
    });
  }
  const Tensor from = state_->resident(u, s, plane, {begin, begin + count});
  copy_to_host(out, from.data, from.bytes(), stream);
  stream.synchronize();
}

void ParamStore::write_state(int unit, size_t plane, int64_t begin, int64_t count, const void* values, Stream& stream) {
  const UnitState& u = state_->at(unit);
  state_->expect_state(unit, plane, begin, count);
  LLMTRAIN_CHECK(!u.quantized(), fmt::format("{} is stored in fewer bits and has no values to write", u.spec.name));
  const UnitSegment& s = state_->segment_of(u, begin, count);
  if (!u.trained() && !state_->policy.own_master) {
    const Tensor to = part_of(state_->stored(u, s), begin - s.update_begin, begin - s.update_begin + count);
    std::vector<uint16_t> rounded(static_cast<size_t>(count));
    round_to(to.dtype, static_cast<const float*>(values), count, rounded.data());
    if (state_->whole_weights_of(u)) state_->finish_gathers();  // gathers may read from there
    copy_to_device(to.data, rounded.data(), to.bytes(), stream);
    return stream.synchronize();
  }
  if (u.trained() && is_offloaded(plane)) {
    return state_->each_part(unit, plane, begin, count, true, [&](char* memory, int64_t at, int64_t bytes) {
      std::memcpy(memory, static_cast<const char*>(values) + at, static_cast<size_t>(bytes));
    });
  }
  const Tensor to = state_->resident(u, s, plane, {begin, begin + count});
  if (state_->whole_weights_of(u)) state_->finish_gathers();  // gathers may read from there
  copy_to_device(to.data, values, to.bytes(), stream);
  stream.synchronize();
}

void ParamStore::round_masters() {
  const ParamPolicy& policy = state_->policy;
  if (!policy.rounded_shard && (policy.own_master || !policy.whole_weights)) return;
  for (StatePass pass(*this, Access::change); pass.next();) {
    const Shard& shard = pass.shard();
    if (shard.master().numel() > 0) cast(shard.weights, shard.master(), *state_->stream);
  }
}

/// Gathers offloaded masters that every rank keeps whole; each has written the part that it owns.
void ParamStore::share_masters(int unit) {
  const State& s = *state_;
  const UnitState& u = s.at(unit);
  std::vector<float> values(static_cast<size_t>(std::min(s.options.offload_piece, u.layout.elements())));
  for (size_t i = 0; i + 1 < u.borders.size(); ++i) {
    const int r = static_cast<int>(i) % s.options.size;
    const int64_t last = u.borders[i + 1];
    for (int64_t at = u.borders[i]; at < last; at += s.options.offload_piece) {
      const int64_t count = std::min(s.options.offload_piece, last - at);
      if (r == s.options.rank) read_state(unit, master_plane, at, count, values.data(), *s.stream);
      s.comm().broadcast(values.data(), count * static_cast<int64_t>(sizeof(float)), r);
      if (r != s.options.rank) write_state(unit, master_plane, at, count, values.data(), *s.stream);
    }
  }
}

}  // namespace llmtrain
