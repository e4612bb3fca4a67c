#pragma once
// Checks of documents: problems and lengths. Each segment is examined separately, by any thread.

#include <xxhash.h>

#include <cstdint>
#include <string>
#include <vector>

#include "data/files/document_reader.hpp"
#include "data/quality/duplicates.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct CheckOptions {
  std::string text_column = "text";
  const Tokenizer* tokenizer = nullptr;  ///< null: tokens are not counted
  int32_t unknown_id = -1;               ///< id of the tokenizer's unknown token
};

/// Facts about a document or a segment of it.
struct SegmentFacts {
  bool row_is_broken = false;   ///< not a row of text: no other fact is known
  bool wrong_encoding = false;  ///< True if some bytes are not UTF-8
  std::string problem;          ///< first problem
  int64_t problem_byte = 0;     ///< offset in the segment
  int64_t bytes = 0;            ///< bytes of the text
  int64_t characters = 0;
  int64_t tokens = 0;
  int64_t unknown = 0;  ///< number of unknown tokens, and of characters without a token
  int64_t blank = 0;    ///< 1 = only white space
  uint64_t content = 0;
  uint64_t similar = 0;
  int64_t runs = 0;  ///< number of runs of three words
};

/// Nothing is known of a segment of a row that is too long.
SegmentFacts examine(const DocumentSegment& segment, InputKind kind, const CheckOptions& options);

}  // namespace llmtrain
