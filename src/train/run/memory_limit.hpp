#pragma once
#include <cstdint>
#include <string>

namespace llmtrain {

/// Tolerance for the memory of the process itself, which may vary between starts: a limit equal to the total of
/// --estimate is then sufficient.
inline constexpr int64_t between_starts = int64_t{512} << 10;
/// Throws UserError(deck) before anything is allocated when `bytes` of a rank exceed `limit` (0: none) by more than the
/// tolerance, or the rank's `share` of its node or GPU. `where` names the key of the limit.
void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where);

}  // namespace llmtrain
