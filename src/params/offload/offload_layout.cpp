#include "params/offload/offload_layout.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/params.hpp"

namespace llmtrain {

OffloadLayout::OffloadLayout(std::vector<int64_t> widths, int64_t piece_elements)
    : widths_(std::move(widths)), piece_elements_(piece_elements) {
  LLMTRAIN_CHECK(piece_elements > 0, "a piece has elements");
}

void OffloadLayout::add(std::span<const ShardBorders> segments, const UnitPlanes& planes) {
  const int unit = units();
  planes_.push_back(planes);
  for (size_t s = 0; s < segments.size(); ++s) {
    for (int64_t at = segments[s].begin; at < segments[s].end; at += piece_elements_) {
      const OffloadPiece piece{unit, s, at, std::min(at + piece_elements_, segments[s].end), bytes_};
      const int64_t bytes = bytes_of(piece, 0, kinds());
      if (bytes == 0) break;  // nothing is offloaded
      pieces_.push_back(piece);
      bytes_ += bytes;
      largest_ = std::max(largest_, bytes);
      for (size_t kind = 0; kind < kinds(); ++kind) part_ = std::max(part_, bytes_of(piece, kind, kind + 1));
    }
  }
  first_of_.push_back(pieces_.size());
}

int64_t OffloadLayout::bytes_of_kind(const OffloadPiece& piece, size_t kind) const {
  if (widths_[kind] != by_tensor) return piece.elements() / chunk_elements * widths_[kind];
  return planes_[static_cast<size_t>(piece.unit)].bytes(kind, piece.begin, piece.end);
}

int64_t OffloadLayout::bytes_of(const OffloadPiece& piece, size_t first, size_t last) const {
  int64_t bytes = 0;
  for (size_t kind = first; kind < last; ++kind) {
    bytes += (bytes_of_kind(piece, kind) + alignment - 1) / alignment * alignment;
  }
  return bytes;
}

}  // namespace llmtrain
