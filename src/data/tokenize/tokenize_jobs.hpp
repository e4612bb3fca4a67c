#pragma once
// Division of the reading and encoding of files among threads and ranks.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/tokenize/tokenize.hpp"

namespace llmtrain {

/// Consecutive bytes of one file: whole documents, or a segment of a long one; for rows a piece of the file.
struct TokenizeJob {
  size_t file;
  int64_t begin;
  int64_t end;
  size_t first_document = 0;  // index in the scan
  size_t documents = 0;       // 1 for a segment
  bool starts = true;         // the first document begins here
  bool ends = true;           // the last document ends here
};

/// The jobs of all files, in the order of the files' bytes.
std::vector<TokenizeJob> jobs_of(const TokenizeRequest& request);

}  // namespace llmtrain
