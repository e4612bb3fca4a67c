#pragma once
// Documents of a file of text or of rows one after the other, in bounded memory, for tools that look at data or divide
// it. Training reads files by pieces in parallel (text_source.hpp).

#include <cstdint>
#include <memory>
#include <string>

#include "data/files/compressed_file.hpp"
#include "data/files/text_source.hpp"

namespace llmtrain {

/// A document, or a part of one that is longer than a part may be. `text` and `behind` of all parts in order are the
/// file, byte for byte, but for a byte order mark at its beginning.
struct DocumentPart {
  std::string text;    ///< of rows a line of JSON
  std::string behind;  ///< the separator or line end after the last part
  int64_t offset = 0;  ///< of the part in the file, unpacked
  int64_t line = 1;    ///< in which it begins
  bool first = true;   ///< of its document
  bool last = true;
};

class DocumentReader {
 public:
  static constexpr int64_t longest_part = int64_t{16} << 20;  ///< bytes of a text; of rows their limit

  /// `limit`: bytes that a compressed file may give.
  DocumentReader(const InputFile& file, int64_t limit);
  /// False at the end. Parts are cut between characters of UTF-8.
  bool next(DocumentPart& part);
  /// Share of the file that is read, 0 to 1.
  double progress() const;

 private:
  bool fill();
  void take(size_t end, DocumentPart& part);
  void take_longest(DocumentPart& part);
  bool is_too_long(size_t end) const;

  FileHandle file_;
  std::unique_ptr<CompressedReader> unpacked_;
  int64_t file_bytes_;
  std::string separator_;  // "\n" of rows
  int64_t longest_;        // bytes of a part
  std::string buffer_;
  size_t begin_ = 0;           // of what is not given yet, in the buffer
  size_t searched_ = 0;        // no separator begins before this place
  int64_t buffer_offset_ = 0;  // of the buffer in the file
  int64_t line_ = 1;           // of begin_
  bool in_document_ = false;
  bool ended_ = false;
};

}  // namespace llmtrain
