#include <algorithm>
#include <optional>
#include <tuple>

#include "tasks/estimate/estimation.hpp"
#include "train/config/mesh_checks.hpp"

namespace llmtrain {

namespace {

/// Less is faster; of two that are alike the one with fewer ranks that share micro-batches.
auto order_of(const MeshChoice& choice) {
  const MeshCost& cost = choice.cost;
  const double time = cost.step_seconds > 0 ? cost.step_seconds : cost.work;
  return std::tuple(time, cost.serial_seconds, choice.mesh.ranks_per_micro_batch(), choice.mesh.tensor);
}

bool is_better(const MeshChoice& choice, const MeshChoice& other) {
  if (choice.cost.fits != other.cost.fits) return choice.cost.fits;
  return choice.cost.fits ? order_of(choice) < order_of(other) : choice.cost.rank_bytes < other.cost.rank_bytes;
}

/// The deck with another mesh. Blocks and the order of reduction stay if it gives them; on several nodes a tree moves
/// less.
Config with_mesh(Config config, const PlannedMesh& mesh, bool several_nodes) {
  ParallelConfig& p = config.parallel;
  p.context = mesh.context;
  p.tensor = mesh.tensor;
  if (!config.provenance.given("parallel.context_blocks")) p.context_blocks = mesh.context;
  if (!config.provenance.given("parallel.tensor_blocks")) p.tensor_blocks = mesh.tensor;
  const bool chooses_order =
      !config.provenance.given("parallel.reduction") && !config.provenance.given("parallel.reduction_blocks");
  if (several_nodes && chooses_order) {
    p.reduction = Reduction::tree;
    p.reduction_blocks = 1;
  }
  if (p.row_blocks() > 1 && !config.provenance.given("parallel.reduction_groups")) p.reduction_groups = 0;
  return config;
}

/// The cheapest of a mesh's stages and levels: later ones need less memory and more time.
std::optional<MeshChoice> best_of_mesh(Config config, const PlannedMesh& mesh,
                                       const std::function<MeshCost(const Config&)>& cost_of) {
  std::optional<MeshChoice> best;
  const bool offloads = config.parallel.offload_parameters != Offload::none;  // at stage 3 alone
  for (int64_t zero = offloads ? 3 : 1; zero <= 3; ++zero) {
    config.parallel.zero = zero;
    for (int level = 0; level <= static_cast<int>(Recompute::block); ++level) {
      config.memory.recompute = static_cast<Recompute>(level);
      const MeshCost cost = cost_of(config);
      const MeshChoice choice{mesh, zero, config.memory.recompute, config.parallel.reduction, cost};
      if (!best || is_better(choice, *best)) best = choice;
      if (cost.fits && level == 0) return best;
      if (cost.fits) break;
    }
  }
  return best;
}

}  // namespace

MeshChoice propose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node,
                        const std::function<MeshCost(const Config& config)>& cost_of) {
  std::optional<MeshChoice> best;
  for (int64_t tensor = 1; tensor <= std::min({ranks, ranks_per_node, max_tensor}); tensor *= 2) {
    for (int64_t context = 1; tensor * context <= ranks && context <= max_context; context *= 2) {
      const PlannedMesh mesh{{tensor, context, config.parallel.expert}, ranks};
      const Config deck = with_mesh(config, mesh, ranks_per_node < ranks);
      const bool groups_given = deck.parallel.row_blocks() > 1 && deck.parallel.reduction_groups > 0;
      if (groups_given || find_mesh_problem(deck, ranks, ranks_per_node)) continue;
      const std::optional<MeshChoice> choice = best_of_mesh(deck, mesh, cost_of);
      if (!best || is_better(*choice, *best)) best = choice;
    }
  }
  LLMTRAIN_CHECK(best.has_value(), "a mesh whose ranks share nothing fits every deck");
  return *best;
}

}  // namespace llmtrain
