#pragma once
#include <string>

#include "core/arena.hpp"
#include "train/trainer.hpp"

namespace llmtrain {

/// What --estimate says: bytes of one rank by category, and of a node.
struct Estimate {
  const Trainer* trainer = nullptr;
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
};

std::string estimate_text(const Estimate& estimate);
std::string estimate_json(const Estimate& estimate);

/// Throws UserError(deck) before anything is allocated when the plan exceeds `limit` bytes per rank (0: none) or this
/// node's share.
void check_memory(const Arena& plan, int64_t limit, int ranks_on_node, const std::string& where);

}  // namespace llmtrain
