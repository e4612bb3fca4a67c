#pragma once
// What is wrong with documents, and how long they are: each part is examined alone, by any thread.

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
  int32_t unknown_id = -1;               ///< its token for what it does not know
};

/// Of a document or of a part of it.
struct PartFacts {
  bool row_is_broken = false;   ///< no row of text: nothing else is known of it
  bool wrong_encoding = false;  ///< bytes that are not UTF-8
  std::string problem;          ///< the first one
  int64_t problem_byte = 0;     ///< in the part
  int64_t bytes = 0;            ///< of the text
  int64_t characters = 0;
  int64_t tokens = 0;
  int64_t unknown = 0;  ///< tokens for what it does not know, characters that it has no token for
  int64_t blank = 0;    ///< 1: nothing but white space
  uint64_t content = 0;
  uint64_t similar = 0;
  int64_t runs = 0;  ///< of three words
};

/// Nothing is known of a part of a row, which is too long.
PartFacts examine(const DocumentPart& part, InputKind kind, const CheckOptions& options);

}  // namespace llmtrain
