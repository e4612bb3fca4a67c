#pragma once
// Reads the documents of a file of text or rows in order, in bounded memory, for tools that examine or divide data.
// Training reads pieces of files in parallel (text_source.hpp).

#include <cstdint>
#include <memory>
#include <string>

#include "data/files/text_source.hpp"

namespace llmtrain {

/// A document, or a segment of a document that is longer than the limit. `text` and `behind` of all segments in order
/// equal the file, byte for byte, except for a byte order mark at its beginning.
struct DocumentSegment {
  std::string text;    ///< for rows a line of JSON
  std::string behind;  ///< separator or line end after the last segment
  int64_t offset = 0;  ///< offset of the segment in the unpacked file
  int64_t line = 1;    ///< line in which it begins
  bool first = true;   ///< True for the first segment of a document
  bool last = true;
};

class DocumentReader {
 public:
  static constexpr int64_t max_segment_bytes = int64_t{16} << 20;  ///< bytes of text; rows have their own limit

  /// `limit` is the number of bytes that a packed file may unpack to.
  DocumentReader(const InputFile& file, int64_t limit);
  /// Returns false at the end. Segments are cut between characters of UTF-8.
  bool next(DocumentSegment& segment);
  /// Returns the fraction of the file that was read, 0 to 1.
  double progress() const;

 private:
  bool fill();
  void take(size_t end, DocumentSegment& segment);
  void take_longest(DocumentSegment& segment);
  bool is_too_long(size_t end) const;

  FileHandle file_;
  std::unique_ptr<TextReader> unpacked_;
  int64_t file_bytes_;
  std::string separator_;  // "\n" for rows
  int64_t longest_;        // bytes of a segment
  std::string buffer_;
  size_t begin_ = 0;           // begin of the remaining text in the buffer
  size_t searched_ = 0;        // no separator begins before this offset
  int64_t buffer_offset_ = 0;  // offset of the buffer in the file
  int64_t line_ = 1;           // line of begin_
  bool in_document_ = false;
  bool ended_ = false;
};

}  // namespace llmtrain
