#pragma once
// Layout of a rank's state in its file on a disk. Pure arithmetic, known before the file exists.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "params/unit_layout.hpp"
#include "params/unit_planes.hpp"

namespace llmtrain {

/// A piece: consecutive elements of a unit, whose kinds are contiguous from `offset` on.
struct OffloadPiece {
  int unit;
  size_t segment;      ///< of the unit
  int64_t begin, end;  ///< elements of the unit
  int64_t offset;      ///< bytes
  int64_t elements() const { return end - begin; }
};

class OffloadLayout {
 public:
  static constexpr int64_t alignment = 4096;  ///< alignment of every read and write, which direct access to disks needs

  static constexpr int64_t by_tensor = -1;

  /// widths: bytes of a chunk by kind (the planes of the state, and the weights), 0: not on the disk, by_tensor: those
  /// of the plane. A piece has at most piece_elements.
  OffloadLayout(std::vector<int64_t> widths, int64_t piece_elements);
  /// Adds the elements of the next unit's segments, whole chunks.
  void add(std::span<const ShardBorders> segments, const UnitPlanes& planes = {});

  const std::vector<OffloadPiece>& pieces() const { return pieces_; }
  /// Index of the unit's first piece: unit u has pieces [pieces_before(u), pieces_before(u + 1)).
  size_t pieces_before(int unit) const { return first_of_[static_cast<size_t>(unit)]; }
  size_t kinds() const { return widths_.size(); }
  int units() const { return static_cast<int>(first_of_.size()) - 1; }
  bool empty() const { return pieces_.empty(); }
  int64_t bytes() const { return bytes_; }        ///< size of the file
  int64_t max_piece() const { return largest_; }  ///< bytes of the largest piece
  int64_t max_part() const { return part_; }      ///< bytes of the largest kind of a piece
  /// Bytes of kinds [first, last) of a piece; those of kinds [0, kind) are the offset of `kind`.
  int64_t bytes_of(const OffloadPiece& piece, size_t first, size_t last) const;

 private:
  int64_t bytes_of_kind(const OffloadPiece& piece, size_t kind) const;

  std::vector<int64_t> widths_;
  std::vector<UnitPlanes> planes_;  ///< by unit
  int64_t piece_elements_;
  std::vector<OffloadPiece> pieces_;
  std::vector<size_t> first_of_{0};
  int64_t bytes_ = 0, largest_ = 0, part_ = 0;
};

}  // namespace llmtrain
