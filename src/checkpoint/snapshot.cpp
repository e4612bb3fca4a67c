#include "checkpoint/snapshot.hpp"

#include <algorithm>
#include <ranges>

#include "core/error.hpp"

namespace llmtrain {

int64_t Snapshot::bytes(const ParamStore& store) {
  int64_t n = 0;
  for (int u = 0; u < store.units().size(); ++u) {
    if (!store.units()[u].trained()) continue;
    for (size_t segment = 0; segment < store.units()[u].segments.size(); ++segment) {
      const UnitRange own = store.units().counted(u, segment);
      for (size_t p = 0; p < store.units().options().states.size(); ++p)
        n += store.units()[u].planes.bytes(p, own.begin, own.end);
    }
  }
  return n;
}

Snapshot::Snapshot(ParamStore& store, Stream& main, std::span<uint8_t> copy)
    : store_(store), main_(main), state_(store, writer_), schema_(state_.schema()), copy_(copy) {
  for (size_t plane = 0; plane < schema_.states.size(); ++plane) {
    parts_.emplace_back();
    for (int64_t u = 0; u < state_.unit_count(); ++u) {
      if (plane == 0) planes_.push_back(schema_.planes_of(u));
      parts_.back().emplace_back();
      for (const ShardBorders& own : state_.owned(u)) {
        if (own.begin == own.end) continue;
        parts_.back().back().push_back({own, total_});
        total_ += planes_[static_cast<size_t>(u)].bytes(plane, own.begin, own.end);
      }
    }
  }
  live_ = std::max<int64_t>(0, total_ - static_cast<int64_t>(copy.size()));
}

int64_t Snapshot::position(int64_t unit, size_t plane, int64_t element) const {
  const std::vector<Part>& parts = parts_[plane][static_cast<size_t>(unit)];
  const auto next = std::ranges::upper_bound(parts, element, {}, [](const Part& p) { return p.elements.begin; });
  LLMTRAIN_CHECK(next != parts.begin(), "an element of another rank");
  const Part& part = *std::prev(next);
  return part.position + planes_[static_cast<size_t>(unit)].bytes(plane, part.elements.begin, element);
}

/// Returns how many of `count` elements from `begin` on are not, or not wholly, in the copy.
int64_t Snapshot::live_part(int64_t unit, size_t plane, int64_t begin, int64_t count) const {
  const StatePlane& spec = schema_.states[plane];
  const int64_t at = position(unit, plane, begin);
  if (spec.by_tensor()) {
    const auto chunks = std::views::iota(int64_t{0}, count / chunk_elements);
    const auto copied = std::ranges::partition_point(
        chunks, [&](int64_t chunk) { return position(unit, plane, begin + chunk * chunk_elements) < live_; });
    return (copied - chunks.begin()) * chunk_elements;
  }
  const int64_t step = spec.by_element() ? 1 : chunk_elements, width = spec.bytes(step);
  return std::clamp<int64_t>((live_ - at + width - 1) / width * step, 0, count);
}

void Snapshot::take() {
  store_.finish_update();
  taken_.record(main_);
  taken_.wait(writer_);
  const StoreState state(store_, main_);
  for (size_t plane = 0; plane < schema_.states.size(); ++plane) {
    for (int64_t u = 0; u < state.unit_count(); ++u) {
      for (const auto& [own, before] : parts_[plane][static_cast<size_t>(u)]) {
        const int64_t begin = own.begin + live_part(u, plane, own.begin, own.end - own.begin);
        if (begin < own.end) state.read(u, plane, begin, own.end - begin, copied(position(u, plane, begin)));
      }
    }
  }
  const std::lock_guard lock(mutex_);
  live_read_ = live_ == 0;
}

void Snapshot::read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const {
  const int64_t live = live_part(unit, plane, begin, count);
  if (live > 0) state_.read(unit, plane, begin, live, out);
  const UnitPlanes& planes = planes_[static_cast<size_t>(unit)];
  const int64_t at = position(unit, plane, begin + live);
  if (at >= live_) release();
  if (live == count) return;
  const int64_t read = planes.bytes(plane, begin, begin + live),
                rest = planes.bytes(plane, begin + live, begin + count);
  std::copy_n(copied(at), rest, static_cast<uint8_t*>(out) + read);
}

void Snapshot::release() const {
  {
    const std::lock_guard lock(mutex_);
    if (live_read_) return;
    live_read_ = true;
  }
  changed_.notify_all();
}

void Snapshot::wait_for_live() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return live_read_; });
}

}  // namespace llmtrain
