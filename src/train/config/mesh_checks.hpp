#pragma once
// Whether the model and the ranks of a job fit the axes of [parallel]. Errors say which numbers would.

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.hpp"
#include "parallel/mesh_shape.hpp"

namespace llmtrain {

class DeckLoader;

/// PlannedMesh of a job of this many ranks. Ranks share rows in tasks that train alone.
PlannedMesh mesh_of(const Config& config, int64_t ranks);

struct MeshProblem {
  std::string key;  ///< of [parallel]
  std::string what;
};

/// The first reason, if there is one, why this many ranks on nodes of `ranks_per_node` (0: ranks are not numbered node
/// by node) cannot run the deck: axes that do not divide their blocks, the heads, channels and tokens of every model,
/// or the ranks.
std::optional<MeshProblem> find_mesh_problem(const Config& config, int64_t ranks, int64_t ranks_per_node);

/// Reports the problem that the deck has with any number of ranks.
void check_mesh(DeckLoader& deck, const Config& config);

/// Throws UserError(deck) for the problem with these ranks.
void require_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node);

}  // namespace llmtrain
