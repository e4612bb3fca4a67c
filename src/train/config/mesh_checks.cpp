#include "train/config/mesh_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "methods/method.hpp"

namespace llmtrain {

namespace {

using Problem = std::optional<MeshProblem>;

bool divides(int64_t part, int64_t whole) { return whole % part == 0; }

/// "1, 2 or 4 fit": the powers of two up to `most` that do.
std::string fitting(int64_t most, const std::function<bool(int64_t)>& fits) {
  std::vector<std::string> numbers;
  for (int64_t n = 1; n <= most; n *= 2) {
    if (fits(n)) numbers.push_back(std::to_string(n));
  }
  if (numbers.empty()) return "none fits";
  std::string text = numbers.front();
  for (size_t i = 1; i < numbers.size(); ++i) text += (i + 1 < numbers.size() ? ", " : " or ") + numbers[i];
  return text + (numbers.size() == 1 ? " fits" : " fit");
}

std::string fitting(int64_t whole) {
  return fitting(whole, [&](int64_t n) { return divides(n, whole); });
}

/// Rules of a deck, whatever the ranks.
class DeckRules {
 public:
  DeckRules(const Config& config, const Provenance& provenance)
      : config_(config), provenance_(provenance), trains_(task_rules(config.run.task).trains()) {}

  Problem first_problem() const {
    Problem problem = problem_of_blocks("parallel.context", parallel_.context, parallel_.row_blocks());
    if (!problem) problem = problem_of_blocks("parallel.tensor", parallel_.tensor, parallel_.matrix_blocks());
    if (!problem) problem = problem_of_model(config_.model, "the model's");
    const auto add_role = [&](const auto& role, std::string_view whose) {
      if (!problem && role) problem = problem_of_model(role->model, whose);
    };
    add_role(config_.source.reference, "the reference model's");
    add_role(config_.source.reward, "the reward model's");
    add_role(config_.source.critic, "the critic's");
    add_role(config_.source.teacher, "the teacher's");
    if (!problem) problem = problem_of_experts();
    if (!problem) problem = problem_of_vocabulary();
    return problem ? problem : problem_of_length();
  }

 private:
  /// The key of an axis' blocks, or of the axis where these follow from it.
  std::string key_of_blocks(const std::string& axis) const {
    return provenance_.given(axis + "_blocks") ? axis + "_blocks" : axis;
  }

  Problem problem_of_blocks(const std::string& axis, int64_t ranks, int64_t blocks) const {
    const auto whole = static_cast<uint64_t>(blocks);
    if (!std::has_single_bit(whole)) {
      return MeshProblem{key_of_blocks(axis), fmt::format("{} is not a power of two: {}", blocks, numbers_of(axis))};
    }
    if (divides(ranks, blocks)) return std::nullopt;
    return MeshProblem{axis, fmt::format("{} ranks do not divide {} blocks: {} fits", ranks, blocks,
                                         std::min(std::bit_floor(static_cast<uint64_t>(ranks)), whole))};
  }

  /// Number that the blocks of matrices divide.
  static int64_t divided_by_blocks(const ModelConfig& m) {
    const ExpertsConfig& e = m.experts;
    const int64_t heads = std::gcd(m.n_heads, m.n_kv_heads);
    const int64_t of_experts = e.exist() ? std::gcd(e.count, e.d_ff_shared) : 0;
    const bool dense = !e.exist() || e.layers(m.n_layers) < m.n_layers;
    return std::gcd(std::gcd(heads, of_experts), dense ? m.d_ff : 0);
  }
  static std::string text_of_blocks(const ModelConfig& m) {
    std::string text = fmt::format("{} heads, {} key heads", m.n_heads, m.n_kv_heads);
    if (!m.experts.exist()) return text + fmt::format(" and d_ff = {}", m.d_ff);
    text += fmt::format(", {} experts", m.experts.count);
    if (m.experts.d_ff_shared > 0) text += fmt::format(", d_ff_shared = {}", m.experts.d_ff_shared);
    return text + (m.experts.layers(m.n_layers) < m.n_layers ? fmt::format(" and d_ff = {}", m.d_ff) : "");
  }

  /// The numbers of blocks of an axis that suit the model.
  std::string numbers_of(const std::string& axis) const {
    const ModelConfig& m = config_.model;
    if (axis == "parallel.tensor") return fitting(std::max<int64_t>(divided_by_blocks(m), 1));
    const int64_t blocks = parallel_.matrix_blocks();
    const int64_t heads = std::max<int64_t>(m.n_heads / blocks, 1),
                  key_heads = std::max<int64_t>(m.n_kv_heads / blocks, 1);
    return fitting(heads, [&](int64_t n) { return parallel_.divides_heads(n, heads, key_heads); });
  }

  Problem problem_of_model(const ModelConfig& m, std::string_view whose) const {
    if (m.n_heads == 0 || m.n_kv_heads == 0) return std::nullopt;  // its folder is missing
    const int64_t blocks = parallel_.matrix_blocks(), common = divided_by_blocks(m);
    if (!divides(blocks, common)) {
      return MeshProblem{key_of_blocks("parallel.tensor"), fmt::format("{} blocks do not divide {} {}: {}", blocks,
                                                                       whose, text_of_blocks(m), fitting(common))};
    }
    const int64_t heads = m.n_heads / blocks, key_heads = m.n_kv_heads / blocks, rows = parallel_.row_blocks();
    if (!trains_ || parallel_.divides_heads(rows, heads, key_heads)) return std::nullopt;
    const bool ulysses = parallel_.context_method == ContextMethod::ulysses;
    const std::string numbers = fitting(heads, [&](int64_t n) { return parallel_.divides_heads(n, heads, key_heads); });
    return MeshProblem{
        key_of_blocks("parallel.context"),
        fmt::format("{} blocks of rows do not divide {} {} heads with {} key heads{}{}: {}", rows, whose, heads,
                    key_heads, blocks > 1 ? " of a tensor block" : "", ulysses ? " by ulysses" : "", numbers)};
  }

  /// Ranks share the experts of every model that has some.
  Problem problem_of_experts() const {
    const int64_t ranks = parallel_.expert;
    if (ranks == 1) return std::nullopt;
    const auto problem = [](std::string what) { return MeshProblem{"parallel.expert", std::move(what)}; };
    if (!std::has_single_bit(static_cast<uint64_t>(ranks))) {
      return problem(
          fmt::format("{} is not a power of two: {} fits", ranks, std::bit_floor(static_cast<uint64_t>(ranks))));
    }
    const int64_t blocks = parallel_.matrix_blocks();
    const auto refuses = [&](const ModelConfig& m, std::string_view whose) -> Problem {
      if (m.n_heads == 0 || !m.experts.exist()) return std::nullopt;
      if (!m.pre_norm || m.sandwich_norm)
        return problem("layers with norms after their branches do not share experts: set 1");
      const int64_t experts = m.experts.count / blocks;
      if (divides(ranks, experts)) return std::nullopt;
      return problem(fmt::format("{} ranks do not divide {} {} experts{}: {}", ranks, whose, experts,
                                 blocks > 1 ? " of a tensor block" : "", fitting(experts)));
    };
    if (config_.model.n_heads > 0 && !config_.model.experts.exist()) return problem("the model has no experts: set 1");
    Problem found = refuses(config_.model, "the model's");
    const auto add_role = [&](const auto& role, std::string_view whose) {
      if (!found && role) found = refuses(role->model, whose);
    };
    add_role(config_.source.reference, "the reference model's");
    add_role(config_.source.reward, "the reward model's");
    add_role(config_.source.critic, "the critic's");
    add_role(config_.source.teacher, "the teacher's");
    return found;
  }

  Problem problem_of_vocabulary() const {
    const int64_t blocks = parallel_.matrix_blocks(), words = config_.model.vocab_size;
    const auto divides_words = [&](int64_t n) { return (n - 1) * ((words + n - 1) / n) < words; };
    if (words == 0 || divides_words(blocks)) return std::nullopt;
    return MeshProblem{key_of_blocks("parallel.tensor"),
                       fmt::format("{} blocks are too many for {} tokens of the vocabulary, of which each has some: {}",
                                   blocks, words, fitting(blocks, divides_words))};
  }

  Problem problem_of_length() const {
    const int64_t rows = parallel_.row_blocks(), tokens = config_.batch.sequence_length;
    if (!trains_ || tokens == 0 || rows <= tokens) return std::nullopt;
    return MeshProblem{key_of_blocks("parallel.context"),
                       fmt::format("{} blocks are more than the {} tokens of a sequence: {}", rows, tokens,
                                   fitting(tokens, [](int64_t) { return true; }))};
  }

  const Config& config_;
  const Provenance& provenance_;
  const ParallelConfig& parallel_ = config_.parallel;
  bool trains_;
};

Problem problem_of_ranks(const PlannedMesh& mesh, int64_t ranks_per_node) {
  const int64_t group = mesh.ranks_per_micro_batch(), blocks = mesh.ranks_of_blocks(), ranks = mesh.ranks;
  if (divides(mesh.tensor, ranks) && !divides(blocks, ranks)) {
    const int64_t fewer = ranks / blocks * blocks;
    const std::string both = mesh.tensor > 1 ? fmt::format(" (expert {} x tensor {})", mesh.expert, mesh.tensor) : "";
    return MeshProblem{"parallel.expert",
                       fmt::format("{} ranks are not a multiple of {}{}: start {}{} ranks, or set expert: {}", ranks,
                                   blocks, both, fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + blocks,
                                   fitting(mesh.expert, [&](int64_t n) { return divides(n * mesh.tensor, ranks); }))};
  }
  if (!mesh.divides_ranks()) {
    const bool several = mesh.tensor > 1 && mesh.context > 1;
    const std::string axis = mesh.context > 1 ? "context" : "tensor";
    const int64_t fewer = ranks / group * group, own = mesh.context > 1 ? mesh.context : mesh.tensor;
    return MeshProblem{"parallel." + axis,
                       fmt::format("{} ranks are not a multiple of {}{}: start {}{} ranks, or set {}: {}", ranks, group,
                                   several ? fmt::format(" (context {} x tensor {})", mesh.context, mesh.tensor) : "",
                                   fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + group, axis,
                                   fitting(own, [&](int64_t n) { return divides(n * (group / own), ranks); }))};
  }
  if (mesh.tensor == 1) return std::nullopt;
  if (ranks_per_node == 0) {
    return MeshProblem{
        "parallel.tensor",
        "ranks that share matrices are neighbours of one node, but ranks are not numbered node by node: let the "
        "launcher place them by node (mpirun --map-by slot, srun --distribution=block)"};
  }
  const int64_t of_node = std::min(ranks_per_node, ranks);
  if (divides(mesh.tensor, of_node)) return std::nullopt;
  return MeshProblem{"parallel.tensor", fmt::format("{} ranks that share matrices lie in one node, but a node has {} "
                                                    "ranks: {}",
                                                    mesh.tensor, of_node, fitting(of_node))};
}

}  // namespace

PlannedMesh mesh_of(const Config& config, int64_t ranks) {
  const bool trains = task_rules(config.run.task).trains();
  return {{config.parallel.tensor, trains ? config.parallel.context : 1, config.parallel.expert}, ranks};
}

std::optional<MeshProblem> find_mesh_problem(const Config& config, int64_t ranks, int64_t ranks_per_node) {
  Problem problem = DeckRules(config, config.provenance).first_problem();
  return problem ? problem : problem_of_ranks(mesh_of(config, ranks), ranks_per_node);
}

void check_mesh(DeckLoader& deck, const Config& config) {
  if (!deck.sound({"parallel.context", "parallel.context_blocks", "parallel.tensor", "parallel.tensor_blocks",
                   "parallel.expert", "model.n_experts", "model.n_heads", "model.n_kv_heads", "model.d_ff",
                   "batch.sequence_length"})) {
    return;
  }
  const Problem problem = DeckRules(config, deck.provenance()).first_problem();
  if (problem) deck.fail(problem->key, problem->what);
}

void require_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node) {
  const Problem problem = find_mesh_problem(config, ranks, ranks_per_node);
  if (problem) throw UserError(ExitCode::deck, config.provenance.where(problem->key) + ": " + problem->what);
}

}  // namespace llmtrain
