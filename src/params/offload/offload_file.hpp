#pragma once
// State of a rank on a local disk. The file has no name: it vanishes with the process, however that ends.

#include <cstdint>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "params/offload/offload_layout.hpp"

namespace llmtrain {

class OffloadFile {
 public:
  /// Creates the file, all zeros, and reserves its space: UserError(io) when the disk has too little. `units`: their
  /// names, for messages.
  OffloadFile(const OffloadLayout& layout, const std::string& folder, std::vector<std::string> units);

  const OffloadLayout& layout() const { return layout_; }
  /// Reads or writes kinds [first, last) of a piece, contiguous as in the layout; memory is aligned to
  /// OffloadLayout::alignment. Threads may do this concurrently with different pieces, and may read the same piece. A
  /// checksum that does not match is a UserError(io).
  void read(size_t piece, size_t first, size_t last, char* data) const;
  void write(size_t piece, size_t first, size_t last, const char* data);
  /// Reads one kind of all pieces of a unit, contiguous.
  void read_unit(int unit, size_t kind, char* data) const;

 private:
  size_t sum_of(size_t piece, size_t kind) const { return piece * layout_.kinds() + kind; }
  void check(size_t piece, size_t kind, const char* data) const;
  void reserve(const std::string& folder);
  void forget_contents();

  const OffloadLayout& layout_;
  std::vector<std::string> units_;
  FileHandle file_;
  std::vector<uint64_t> sums_;  ///< XXH3 of each piece's kinds, padding included
};

/// Throws UserError unless files of `bytes` in all can be created in the folder (cannot_create: it does not exist or
/// cannot be written; io: too little space). `where` names the folder's key.
void check_offload_folder(const std::string& folder, int64_t bytes, const std::string& where);

/// True if the folder lies in memory, so that offloading to it saves nothing.
bool is_in_memory(const std::string& folder);

}  // namespace llmtrain
