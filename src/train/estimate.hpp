#pragma once
#include <string>

#include "core/arena.hpp"

namespace llmtrain {

/// What --estimate says: bytes of one rank by category, and of a node.
struct Estimate {
  const Arena* plan = nullptr;
  int64_t parameters = 0;
  int64_t state_bytes = 0;  ///< of a checkpoint, all ranks
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
};

std::string estimate_text(const Estimate& estimate);
std::string estimate_json(const Estimate& estimate);

/// Throws UserError(deck) before anything is allocated when `bytes` of a rank exceed `limit` (0: none) or the rank's
/// `share` of its node. `where` names the key of the limit.
void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where);

}  // namespace llmtrain
