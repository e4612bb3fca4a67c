#pragma once
// State of a rank on a local disk. The file has no name: it vanishes with the process, however that ends.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "params/offload_layout.hpp"

namespace llmtrain {

class OffloadFile {
 public:
  /// All zeros. The space is taken now: UserError(io) when the disk has not so much. `units`: their names, for
  /// messages.
  OffloadFile(const OffloadLayout& layout, const std::string& folder, std::vector<std::string> units);

  const OffloadLayout& layout() const { return layout_; }
  /// Kinds [first, last) of a piece, one behind the other as in the layout, from or to memory that is aligned to
  /// OffloadLayout::alignment. Threads may do this at once with different pieces, and read one together. What is read
  /// and is not what was written is a UserError(io).
  void read(size_t piece, size_t first, size_t last, char* data) const;
  void write(size_t piece, size_t first, size_t last, const char* data);
  /// One kind of all pieces of a unit, one behind the other.
  void read_unit(int unit, size_t kind, char* data) const;

 private:
  void check(size_t piece, size_t kind, const char* data) const;
  void reserve(const std::string& folder);
  void forget_contents();

  const OffloadLayout& layout_;
  std::vector<std::string> units_;
  FileHandle file_;
  std::vector<std::array<uint64_t, offload_kinds>> sums_;  ///< XXH3 of each piece's kinds, padding included
};

/// Throws UserError unless files of `bytes` in all can be made in the folder (cannot_create: it is not there or cannot
/// be written; io: too little space). `where` names the key that names it.
void check_offload_folder(const std::string& folder, int64_t bytes, const std::string& where);

/// The folder lies in memory, so that nothing is gained by it.
bool is_in_memory(const std::string& folder);

}  // namespace llmtrain
