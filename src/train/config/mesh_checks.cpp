#include "train/config/mesh_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "methods/method.hpp"
#include "parallel/head_division.hpp"

namespace llmtrain {

namespace {

bool divides(int64_t part, int64_t whole) { return whole % part == 0; }

/// "1, 2 or 4 fits": the powers of two that divide `whole`.
std::string fitting(int64_t whole) {
  std::vector<std::string> numbers;
  for (int64_t n = 1; n <= whole && divides(n, whole); n *= 2) numbers.push_back(std::to_string(n));
  std::string text = numbers.front();
  for (size_t i = 1; i < numbers.size(); ++i) text += (i + 1 < numbers.size() ? ", " : " or ") + numbers[i];
  return text + " fits";
}

/// Number that tensor_blocks must divide.
int64_t divided_by_blocks(const ModelConfig& m) { return std::gcd(std::gcd(m.n_heads, m.n_kv_heads), m.d_ff); }

bool heads_fit(const ParallelConfig& p, const ModelConfig& m) {
  const int64_t blocks = p.matrix_blocks();
  const bool gathers = p.context_method != ContextMethod::ulysses;
  return rows_divide_heads(p.row_blocks(), gathers, m.n_heads / blocks, m.n_kv_heads / blocks);
}

void check_model(DeckLoader& deck, const Config& config, const ModelConfig& m) {
  if (m.n_heads == 0 || m.n_kv_heads == 0) return;  // its folder is missing
  const int64_t blocks = config.parallel.matrix_blocks(), parts = divided_by_blocks(m);
  if (!divides(blocks, parts)) {
    deck.check(false, {deck.given("parallel.tensor_blocks") ? "parallel.tensor_blocks" : "parallel.tensor"},
               fmt::format("{} blocks do not divide the model's {} heads, {} key heads and d_ff = {}: {}", blocks,
                           m.n_heads, m.n_kv_heads, m.d_ff, fitting(parts)));
  } else if (task_rules(config.run.task).trains()) {
    config.parallel.check_heads(deck, m.n_heads / blocks, m.n_kv_heads / blocks);
  }
}

}  // namespace

PlannedMesh mesh_of(const Config& config, int64_t ranks) {
  const bool trains = task_rules(config.run.task).trains();
  return {{config.parallel.tensor, trains ? config.parallel.context : 1}, ranks};
}

void check_mesh(DeckLoader& deck, const Config& config) {
  if (!deck.sound({"parallel.context", "parallel.context_blocks", "parallel.tensor", "parallel.tensor_blocks",
                   "model.n_heads", "model.n_kv_heads", "model.d_ff"})) {
    return;
  }
  check_model(deck, config, config.model);
  for (const auto* role : {&config.source.reference, &config.source.reward, &config.source.critic}) {
    if (*role) check_model(deck, config, (*role)->model);
  }
  const int64_t blocks = config.parallel.matrix_blocks(), words = config.model.vocab_size;
  deck.check(words == 0 || (blocks - 1) * ((words + blocks - 1) / blocks) < words,
             {"parallel.tensor_blocks", "parallel.tensor", "model.vocab_size"},
             fmt::format("{} blocks are too many for {} tokens of the vocabulary: each has some", blocks, words));
  const int64_t rows = config.parallel.row_blocks(), tokens = config.batch.sequence_length;
  deck.check(rows <= tokens, {"parallel.context_blocks", "parallel.context", "batch.sequence_length"},
             fmt::format("{} blocks are more than the {} tokens of a sequence", rows, tokens));
}

bool mesh_fits(const Config& config, int64_t ranks, int64_t ranks_per_node) {
  const ParallelConfig& p = config.parallel;
  const PlannedMesh mesh = mesh_of(config, ranks);
  const bool neighbours =
      mesh.tensor == 1 || (ranks_per_node > 0 && divides(mesh.tensor, std::min(ranks_per_node, ranks)));
  return mesh.divides_ranks() && neighbours && divides(mesh.tensor, p.matrix_blocks()) &&
         divides(p.context, p.row_blocks()) && divides(p.matrix_blocks(), divided_by_blocks(config.model)) &&
         heads_fit(p, config.model) && p.row_blocks() <= config.batch.sequence_length;
}

void require_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node) {
  const PlannedMesh mesh = mesh_of(config, ranks);
  const int64_t group = mesh.of_micro_batch();
  const auto refuse = [&](const char* key, const std::string& what) {
    throw UserError(ExitCode::deck, config.provenance.where(key) + ": " + what);
  };
  const bool several = mesh.tensor > 1 && mesh.context > 1;
  if (!mesh.divides_ranks()) {
    const int64_t fewer = ranks / group * group;
    refuse(mesh.context > 1 ? "parallel.context" : "parallel.tensor",
           fmt::format("{} ranks are not a multiple of {}{}: start {}{} ranks, or set {} to a divisor of {}", ranks,
                       group, several ? fmt::format(" (context {} x tensor {})", mesh.context, mesh.tensor) : "",
                       fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + group,
                       mesh.context > 1 ? "context" : "tensor", ranks));
  }
  if (mesh.tensor == 1) return;
  if (ranks_per_node == 0) {
    refuse("parallel.tensor",
           "ranks that share matrices are neighbours of one node, but ranks are not numbered node by node: let the "
           "launcher place them by node (mpirun --map-by slot, srun --distribution=block)");
  }
  const int64_t of_node = std::min(ranks_per_node, ranks);
  if (!divides(mesh.tensor, of_node)) {
    refuse("parallel.tensor", fmt::format("{} ranks that share matrices lie in one node, but a node has {} ranks: {}",
                                          mesh.tensor, of_node, fitting(of_node)));
  }
}

}  // namespace llmtrain
