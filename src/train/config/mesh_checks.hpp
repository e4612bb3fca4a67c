#pragma once
// Whether the model and the ranks of a job fit the axes of [parallel]. Errors say which numbers would.

#include <cstdint>

#include "config/config.hpp"
#include "parallel/planned_mesh.hpp"

namespace llmtrain {

class DeckLoader;

/// PlannedMesh of a job of this many ranks. Ranks share rows in tasks that train alone.
PlannedMesh mesh_of(const Config& config, int64_t ranks);

/// Reports axes that do not divide the heads and channels of the model, and lengths that they cannot share.
void check_mesh(DeckLoader& deck, const Config& config);

/// True if check_mesh() and require_mesh() accept this deck.
bool mesh_fits(const Config& config, int64_t ranks, int64_t ranks_per_node);

/// Throws UserError(deck) unless this many ranks form the deck's mesh on nodes of `ranks_per_node` (0: ranks are not
/// numbered node by node).
void require_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node);

}  // namespace llmtrain
