#pragma once
#include <cstdint>

namespace llmtrain {

/// Text that a file holds in another form, in order: unpacked, or the rows of a table as lines of JSON.
class TextReader {
 public:
  virtual ~TextReader() = default;
  /// Returns the next `count` bytes; fewer only at the end, 0 from then on. Throws UserError(bad_content).
  virtual int64_t read(char* data, int64_t count) = 0;
  /// Returns the number of bytes of the file that are used, about.
  virtual int64_t position() const = 0;
};

}  // namespace llmtrain
