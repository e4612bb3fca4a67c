#include "tasks/estimate/estimation.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "core/files/file_handle.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/status_board.hpp"
#include "tasks/estimate/memory_limit.hpp"
#include "tasks/job_opening.hpp"
#include "train/config/mesh_checks.hpp"
#include "train/run/libraries.hpp"
#include "train/step_profile.hpp"

namespace llmtrain {

namespace {

/// Memory of the first tensor rank of the last data rank, whose shards and block of the vocabulary are the largest of
/// `ranks` ranks, on a node with `of_node` of them where others
/// have `per_node`, with the number of threads that a rank has there.
struct LastRank {
  LastRank(const Config& config, const Dataset& data, int64_t ranks, int64_t per_node, int64_t of_node) {
    use_threads(choose_threads(find_thread_facts(static_cast<int>(of_node))).threads);
    const int64_t blocks = config.parallel.ranks_of_blocks();
    const int size = static_cast<int>(ranks / blocks);
    RankPosition position{size - 1, size, 1, static_cast<int>(per_node / blocks), 0};
    if (device_memory_is_host()) position.node_size = static_cast<int>(std::max<int64_t>(of_node / blocks, 1));
    plan = find_task(config.run.task).plan(config, data, position);
    const std::optional<DType> profiled = memory_limits(config).profiled;
    const int64_t profile = profiled ? limits_memory_bytes(*profiled, of_node) : 0;
    kernel_bytes = matmul_workspace_bytes() + profile + (device_memory_is_host() ? plan->host_bytes() : 0);
    if (!device_memory_is_host()) spared_bytes = profile;  // as in check_plan()
  }

  std::unique_ptr<RankPlan> plan;
  int64_t kernel_bytes;      ///< memory of libraries, beside the process
  int64_t spared_bytes = 0;  ///< see Estimate
};

/// Assumption of a training plan about the library that computes attention. `tokens`: maximum of a micro-batch.
std::string assumption_of(const ModelConfig& m, int64_t sequence_length, int64_t tokens) {
  AttentionShape shape{.heads = m.n_heads, .kv_heads = m.n_kv_heads, .head_dim = m.head_dim};
  shape.softcap = static_cast<float>(m.attention_softcap);
  shape.longest = m.attention_sinks ? 0 : sequence_length;
  shape.window = m.window_of_layer(0);
  for (int64_t layer = 1; layer < m.n_layers; ++layer) shape.window = std::min(shape.window, m.window_of_layer(layer));
  return attention_assumption(shape, tokens);
}

/// FLOPs of the rank that has most, in a step of `ranks`: those of products and attention, and of what is recomputed.
double step_flops(const Config& config, const RankPlan& plan, int64_t ranks) {
  const ModelConfig& m = config.model;
  const auto length = static_cast<double>(config.batch.sequence_length), layers = static_cast<double>(m.n_layers);
  const auto queries = static_cast<double>(m.n_heads * m.head_dim),
             keys = static_cast<double>(m.n_kv_heads * m.head_dim);
  const double token = plan.flops_per_token(config.batch.sequence_length);
  double again = 0;
  if (config.memory.recompute == Recompute::attention) {
    again = layers * (2 * (queries + 2 * keys) * static_cast<double>(m.d_model) + 4 * queries * length);
  }
  if (config.memory.recompute == Recompute::block) again = token / 3;
  ParamStoreOptions options = plan.training()->params().units().options();
  options.size = static_cast<int>(ranks / config.parallel.ranks_of_blocks());
  const double tokens = static_cast<double>(passes_of(options) * config.batch.micro) * length;
  return tokens * (token + again) / static_cast<double>(config.parallel.context * config.parallel.tensor);
}

TrafficEstimate estimate_traffic(const CommandLine& command, const Config& config, const RankPlan& plan,
                                 const Estimate& e, double seconds_per_flop) {
  const TrainingPlan& training = *plan.training();
  const PlannedMesh mesh = mesh_of(config, e.ranks);
  TrafficEstimate t;
  t.nodes = (e.ranks + e.ranks_per_node - 1) / e.ranks_per_node;
  const MeshTraffic traffic = predict_mesh_traffic(
      config, training, mesh, e.ranks_per_node, device_memory_is_host() ? Transport::shared_memory : Transport::nccl);
  t.step = traffic.all;
  t.axes = traffic.axes;
  const auto lost_after = static_cast<double>(config.watchdog.lost_after.seconds);
  if (config.watchdog.enabled) t.opens_per_second = static_cast<double>(t.nodes) / status_beat(t.nodes, lost_after);
  t.checkpoint_files = config.checkpoint.shares_files(e.ranks) ? t.nodes : e.ranks;
  if (command.network.empty()) return t;
  t.network = parse_network(command.network);
  t.computing = step_flops(config, plan, e.ranks) * seconds_per_flop;
  return t;
}

/// Seconds of a FLOP on a rank, from the steps that --measure has timed on `own_ranks` or from --network; 0: unknown.
double seconds_of_flop(const CommandLine& command, const Config& config, const RankPlan& plan, const Estimate& e,
                       int64_t own_ranks) {
  if (e.time) return e.time->step / step_flops(config, plan, own_ranks);
  const double flops = command.network.empty() ? 0 : parse_network(command.network).flops;
  return flops > 0 ? 1 / flops : 0;
}

/// Cost of another mesh of the estimated ranks.
MeshCost cost_of_mesh(const CommandLine& command, const Config& config, const Dataset& data, const Estimate& e,
                      double seconds_per_flop) {
  const LastRank rank(config, data, e.ranks, e.ranks_per_node, e.ranks_per_node);
  MeshCost cost;
  cost.rank_bytes = rank.plan->arena().bytes() + device_context_bytes(e.ranks_per_node) + rank.kernel_bytes;
  cost.fits = e.limit == 0 || cost.rank_bytes - rank.spared_bytes <= e.limit + between_starts;
  cost.work = step_flops(config, *rank.plan, e.ranks);
  const TrafficEstimate traffic = estimate_traffic(command, config, *rank.plan, e, seconds_per_flop);
  cost.serial_seconds = traffic.serial_seconds();
  if (traffic.has_time()) cost.step_seconds = traffic.overlapped_seconds();
  return cost;
}

}  // namespace

int run_estimation(const CommandLine& command, Job& job) {
  Communicator& communicator = job.runtime.communicator();
  const TaskEntry& task = find_task(job.deck.run.task);
  decide_compute(job.deck, job.facts, agreed_fast_bf16(communicator));
  job.examine(true);
  const Dataset data = task.load(job.deck, job.facts, communicator, [](const std::string&) {});
  const Config config = job.config();
  Estimate e;
  e.ranks = command.ranks > 0 ? command.ranks : communicator.size();
  e.ranks_per_node = std::min<int64_t>(e.ranks, command.ranks_per_node > 0 ? command.ranks_per_node
                                                : command.ranks > 0        ? e.ranks
                                                                           : communicator.node_size());
  if (!command.network.empty() && e.ranks == 1) {
    throw UserError(ExitCode::command_line,
                    "command line: --network: one rank has no traffic; say how many with --ranks "
                    "(llmtrain --help shows the usage)");
  }
  require_mesh(config, e.ranks, e.ranks_per_node);
  e.mesh = mesh_of(config, e.ranks);
  const LastRank rank(config, data, e.ranks, e.ranks_per_node, e.ranks_per_node);
  e.plan = &rank.plan->arena();
  e.library_bytes = device_context_bytes(e.ranks_per_node) + rank.kernel_bytes;
  e.spared_bytes = rank.spared_bytes;
  e.limit = config.memory.limit;
  e.parameters = rank.plan->parameters();
  e.trained_parameters = rank.plan->trained_parameters();
  e.offloaded_bytes = rank.plan->offloaded_bytes();
  e.cache_bytes = rank.plan->cache_bytes();
  e.pinned_bytes = rank.plan->pinned_bytes();
  e.state_bytes = rank.plan->state_bytes();
  const BatchConfig& batch = config.batch;
  if (!attention_backend("some library", task_rules(config.run.task).trains(), config.model,
                         compute_dtype(config.precision.compute))
           .empty()) {
    job.facts.add_note(assumption_of(config.model, batch.sequence_length,
                                     std::max(batch.micro * batch.sequence_length, config.data.max_tokens_per_batch)));
  }
  if (const int64_t rest = e.ranks % e.ranks_per_node; rest != 0) {
    const int64_t process = device_context_bytes(rest);  // with one plan, as in a run
    const LastRank last(config, data, e.ranks, e.ranks_per_node, rest);
    e.last_node = {rest, last.plan->arena().bytes() + process + last.kernel_bytes};
  }
  use_threads(job.runtime.threads());
  if (command.measure) e.time = task.measure(job, config, data);
  throw_on_all_ranks(communicator, [&] { bytes_of_node(e); });  // before sums over its ranks
  if (rank.plan->training() != nullptr) {
    const double seconds_per_flop = seconds_of_flop(command, config, *rank.plan, e, communicator.size());
    e.traffic = estimate_traffic(command, config, *rank.plan, e, seconds_per_flop);
    if (command.ranks > 1) {
      e.proposal = propose_mesh(config, e.ranks, e.ranks_per_node, [&](const Config& other) {
        return cost_of_mesh(command, other, data, e, seconds_per_flop);
      });
      use_threads(job.runtime.threads());
    }
  }
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) text = command.json ? estimate_json(e) : estimate_text(e);
  });
  if (communicator.rank() == 0) {
    print_notes(job.facts.notes);
    write_standard_output(text);
  }
  return 0;
}

}  // namespace llmtrain
