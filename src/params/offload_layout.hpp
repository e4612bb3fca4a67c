#pragma once
// Where the state of a rank lies in its file on a disk. Pure arithmetic: known before there is a file.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmtrain {

/// What an element may have on the disk: its StateKinds in their order, and the weight in the compute dtype.
inline constexpr size_t offload_kinds = 4;
inline constexpr size_t offloaded_weights = 3;

/// Consecutive elements of a unit, whose kinds lie one behind the other from `offset` on.
struct OffloadPiece {
  int unit;
  int64_t begin, end;  ///< elements of the unit
  int64_t offset;      ///< bytes
  int64_t elements() const { return end - begin; }
};

class OffloadLayout {
 public:
  static constexpr int64_t alignment = 4096;  ///< of every read and write: what direct access to disks wants

  /// widths: bytes of an element by kind, 0: not on the disk. A piece has at most piece_elements.
  OffloadLayout(const std::array<int64_t, offload_kinds>& widths, int64_t piece_elements);
  /// Elements [begin, end) of the next unit.
  void add(int64_t begin, int64_t end);

  const std::vector<OffloadPiece>& pieces() const { return pieces_; }
  /// Pieces [pieces_before(u), pieces_before(u + 1)) are the unit's.
  size_t pieces_before(int unit) const { return first_of_[static_cast<size_t>(unit)]; }
  int units() const { return static_cast<int>(first_of_.size()) - 1; }
  bool empty() const { return pieces_.empty(); }
  int64_t bytes() const { return bytes_; }        ///< of the file
  int64_t max_piece() const { return largest_; }  ///< bytes
  int64_t max_part() const { return part_; }      ///< bytes of one kind
  /// Bytes of kinds [first, last) of a piece; those of kinds [0, kind) are before `kind`.
  int64_t bytes_of(const OffloadPiece& piece, size_t first, size_t last) const;

 private:
  std::array<int64_t, offload_kinds> widths_;
  int64_t piece_elements_;
  std::vector<OffloadPiece> pieces_;
  std::vector<size_t> first_of_{0};
  int64_t bytes_ = 0, largest_ = 0, part_ = 0;
};

}  // namespace llmtrain
