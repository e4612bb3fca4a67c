#pragma once
#include <cstdint>

namespace llmtrain {

/// True if attention over so many blocks of rows divides the heads among as many ranks: each has some key heads, or
/// with `gathers` some of the query heads of one.
inline bool rows_divide_heads(int64_t blocks, bool gathers, int64_t heads, int64_t key_heads) {
  return key_heads % blocks == 0 || (gathers && heads % blocks == 0 && blocks % key_heads == 0);
}

}  // namespace llmtrain
