#include "params/offload/offload_store.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/profile.hpp"
#include "params/offload/offload_ahead.hpp"
#include "params/offload/offload_file.hpp"
#include "params/offload/offload_ring.hpp"
#include "params/offload/offload_transfers.hpp"

namespace llmtrain {

namespace {

/// Bytes of a chunk by kind: the planes of the state, and the weights.
std::vector<int64_t> widths_of(const ParamPolicy& policy, const ParamStoreOptions& options) {
  std::vector<int64_t> widths;
  for (const StatePlane& plane : options.states) {
    widths.push_back(plane.by_tensor() ? OffloadLayout::by_tensor : plane.bytes(chunk_elements));
  }
  widths.push_back(chunk_elements * static_cast<int64_t>(size_of(options.compute)));
  for (size_t kind = 0; kind < widths.size(); ++kind) {
    if (!policy.offloaded[kind]) widths[kind] = 0;
  }
  return widths;
}

char* aligned(void* memory) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t alignment = OffloadLayout::alignment;
  return static_cast<char*>(memory) + (alignment - at % alignment) % alignment;
}

}  // namespace

OffloadStore::OffloadStore(const UnitStates& units)
    : units_(units), layout_(widths_of(policy_, options_), options_.offload_piece) {
  for (const UnitState& u : units) {
    std::vector<ShardBorders> updated;
    for (const UnitSegment& s : u.segments) {
      if (u.trained()) updated.push_back({s.update_begin, s.update_end});
    }
    layout_.add(updated, u.planes);
  }
}

OffloadStore::~OffloadStore() = default;

void OffloadStore::plan(Arena& arena) {
  if (layout_.empty()) return;
  if (device_memory_is_host()) {
    arena.add(ring_memory_, MemoryCategory::optimizer, "offloaded pieces", DType::u8, {ring_bytes()});
  } else {
    arena.add(device_piece_, MemoryCategory::optimizer, "offloaded piece", DType::u8, {layout_.max_piece()});
  }
}

void OffloadStore::reserve_disk() {
  if (!policy_.on_disk || layout_.empty() || file_ != nullptr) return;
  std::vector<std::string> names;
  for (const UnitState& u : units_) names.push_back(u.spec.name);
  file_ = std::make_unique<OffloadFile>(layout_, options_.offload_path, std::move(names));
}

/// Bytes of host memory: pieces in transfer, weights of a unit, and one kind of a piece.
int64_t OffloadStore::ring_bytes() const {
  if (!policy_.on_disk) return 0;
  const int64_t weights = reads_weights_ahead() ? OffloadAhead::bytes(layout_, policy_.weights_kind()) : 0;
  return static_cast<int64_t>(OffloadRing::slots) * layout_.max_piece() + weights + layout_.max_part() +
         OffloadLayout::alignment;
}

bool OffloadStore::reads_weights_ahead() const {
  return policy_.on_disk && !policy_.whole_weights && has(policy_.weights_kind());
}

int64_t OffloadStore::pinned_bytes() const {
  if (layout_.empty() || device_memory_is_host()) return 0;
  const int64_t state = policy_.on_disk ? ring_bytes() : layout_.bytes();
  return state + (updates_on_host() ? OffloadTransfers::bytes(options_.offload_piece) : 0);
}

void OffloadStore::start(Stream& stream) {
  stream_ = &stream;
  if (layout_.empty()) return;
  reserve_disk();
  void* memory = ring_memory_.data;
  if (!device_memory_is_host()) {
    pinned_ = PinnedBuffer(policy_.on_disk ? ring_bytes() : layout_.bytes());
    memory = pinned_.data();
    if (updates_on_host()) transfers_ = std::make_unique<OffloadTransfers>(options_.offload_piece);
  }
  host_memory_ =
      policy_.on_disk ? aligned(memory) : static_cast<char*>(memory);  // only the ring has room for alignment
  if (!policy_.on_disk) return;
  std::array<char*, OffloadRing::slots> buffers{};
  for (char*& buffer : buffers) {
    buffer = host_memory_;
    host_memory_ += layout_.max_piece();
  }
  ring_ = std::make_unique<OffloadRing>(*file_, buffers);
  if (reads_weights_ahead()) {
    ahead_ = std::make_unique<OffloadAhead>(*file_, policy_.weights_kind(), host_memory_);
    host_memory_ += OffloadAhead::bytes(layout_, policy_.weights_kind());
  }
}

int64_t OffloadStore::bytes_of_kind(const UnitState& u, size_t kind, int64_t begin, int64_t end) const {
  if (kind != policy_.rounded_kind()) return u.planes.bytes(kind, begin, end);
  return (end - begin) * static_cast<int64_t>(size_of(options_.compute));
}

void OffloadStore::each_part(int unit, size_t kind, int64_t begin, int64_t count, bool changes,
                             const std::function<void(char*, int64_t, int64_t)>& visit) const {
  if (changes && ahead_ != nullptr) ahead_->forget();
  const std::lock_guard lock(part_mutex_);
  const UnitState& u = units_[unit];
  for (size_t p = layout_.pieces_before(unit); p < layout_.pieces_before(unit + 1); ++p) {
    const OffloadPiece& piece = layout_.pieces()[p];
    const int64_t from = std::max(begin, piece.begin), to = std::min(begin + count, piece.end);
    if (from >= to) continue;
    char* memory = host_memory_;
    if (policy_.on_disk) {
      file_->read(p, kind, kind + 1, memory);
    } else {
      memory += piece.offset + layout_.bytes_of(piece, 0, kind);
    }
    visit(memory + bytes_of_kind(u, kind, piece.begin, from), bytes_of_kind(u, kind, begin, from),
          bytes_of_kind(u, kind, from, to));
    if (changes && policy_.on_disk) file_->write(p, kind, kind + 1, memory);
  }
}

void OffloadStore::copy_weights(int unit, const Tensor& buffer) {
  if (ahead_ != nullptr) return take_ahead(unit, buffer);
  for (const UnitSegment& s : units_[unit].segments) {
    if (s.update_begin == s.update_end) continue;
    const Tensor out = part_of(buffer, s.update_begin, s.update_end);
    each_part(unit, policy_.weights_kind(), s.update_begin, out.numel(), false,
              [&](const char* memory, int64_t at, int64_t bytes) {
                copy_to_device(static_cast<char*>(out.data) + at, memory, bytes, *stream_);
              });
  }
}

/// Units are taken in order, forwards and then backwards: the next one is prefetched. (Frozen ones are not offloaded.)
void OffloadStore::take_ahead(int unit, const Tensor& buffer) {
  const ProfileSpan span(SpanKind::kernel, "wait for offloaded weights");
  const size_t kind = policy_.weights_kind();
  const char* from = ahead_->take(unit);
  for (size_t p = layout_.pieces_before(unit); p < layout_.pieces_before(unit + 1); ++p) {
    const OffloadPiece& piece = layout_.pieces()[p];
    const int64_t bytes = bytes_of_kind(units_[unit], kind, piece.begin, piece.end);
    copy_to_device(part_of(buffer, piece.begin, piece.end).data, from, bytes, *stream_);
    from += layout_.bytes_of(piece, kind, kind + 1);
  }
  stream_->synchronize();  // the memory is reused
  const int direction = unit < last_taken_ ? -1 : 1, end = units_.size();
  int next = unit + direction;
  while (next >= 0 && next < end && !units_[next].trained()) next += direction;
  ahead_->begin(next);
  last_taken_ = unit;
}

void OffloadStore::begin_pass(size_t planes, bool changes) {
  if (changes && ahead_ != nullptr) ahead_->forget();
  if (ring_ != nullptr) ring_->begin({0, planes, 0, changes ? layout_.kinds() : 0});
}

bool OffloadStore::next_piece(size_t index) {
  return ring_ != nullptr ? ring_->next() : index < layout_.pieces().size();
}

void OffloadStore::abandon_pass() {
  if (ring_ != nullptr) ring_->abandon();
}

char* OffloadStore::memory_of(const OffloadPiece& piece) const {
  return ring_ != nullptr ? ring_->data() : host_memory_ + piece.offset;
}

void OffloadStore::add_tensors(ParamShard& shard, const OffloadPiece& piece, char* memory) const {
  for (size_t kind = 0; kind <= policy_.rounded_kind(); ++kind) {
    if (!has(kind)) continue;
    char* at = memory + layout_.bytes_of(piece, 0, kind);
    if (kind == policy_.rounded_kind()) {
      shard.weights = Tensor(at, options_.compute, {piece.elements()});
    } else {
      const int64_t values = units_[piece.unit].planes.values(kind, piece.begin, piece.end);
      shard.states[kind] = Tensor(at, options_.states[kind].dtype, {values});
    }
  }
}

}  // namespace llmtrain
