#include "tasks/estimation.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "core/files/file_handle.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/status_board.hpp"
#include "tasks/job_opening.hpp"
#include "train/run/estimate.hpp"
#include "train/run/libraries.hpp"
#include "train/step_profile.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

namespace {

/// Memory of the last of `ranks` ranks, which has the largest shards, on a node with `of_node` of them where others
/// have `per_node`, with the number of threads that a rank has there.
struct LastRank {
  LastRank(const Config& config, const Dataset& data, int64_t ranks, int64_t per_node, int64_t of_node) {
    use_threads(choose_threads(find_thread_facts(static_cast<int>(of_node))).threads);
    const int size = static_cast<int>(ranks);
    RankPosition position{size - 1, size, 1, static_cast<int>(per_node)};
    if (device_memory_is_host()) position = {size - 1, size, static_cast<int>(of_node), static_cast<int>(per_node)};
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
  shape.longest = sequence_length;
  shape.window = m.window_of_layer(0);
  for (int64_t layer = 1; layer < m.n_layers; ++layer) shape.window = std::min(shape.window, m.window_of_layer(layer));
  return attention_assumption(shape, tokens);
}

/// Number of micro-batches that the ranks with most of them compute one after the other in a step.
double passes_of(const ParamStoreOptions& options, int64_t ranks) {
  return static_cast<double>((options.groups + ranks - 1) / ranks * options.micro_batches_per_group);
}

/// `own_ranks`: of this job, which was measured.
std::optional<TrafficEstimate> estimate_traffic(const CommandLine& command, const Config& config, const RankPlan& plan,
                                                const Estimate& e, int64_t own_ranks) {
  const TrainingPlan* training = plan.training();
  if (training == nullptr) return std::nullopt;
  const UnitStates& units = training->params().units();
  const ParamStoreOptions& options = units.options();
  TrafficEstimate t;
  t.nodes = (e.ranks + e.ranks_per_node - 1) / e.ranks_per_node;
  t.step =
      predict_traffic(units, e.ranks_per_node, device_memory_is_host() ? Transport::shared_memory : Transport::nccl,
                      training->optimizer->whole_tensors(units));
  const auto lost_after = static_cast<double>(config.watchdog.lost_after.seconds);
  if (config.watchdog.enabled) t.opens_per_second = static_cast<double>(t.nodes) / status_beat(t.nodes, lost_after);
  t.checkpoint_files = config.checkpoint.shares_files(e.ranks) ? t.nodes : e.ranks;
  if (command.network.empty()) return t;
  t.network = parse_network(command.network);
  const double passes = passes_of(options, e.ranks);
  if (e.time) {
    t.computing = e.time->step * passes / passes_of(options, own_ranks);
  } else if (t.network->flops > 0) {
    const BatchConfig& batch = config.batch;
    t.computing = passes * static_cast<double>(batch.micro * batch.sequence_length) *
                  plan.flops_per_token(batch.sequence_length) / t.network->flops;
  }
  return t;
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
  const LastRank rank(config, data, e.ranks, e.ranks_per_node, e.ranks_per_node);
  e.plan = &rank.plan->arena();
  e.library_bytes = device_context_bytes(e.ranks_per_node) + rank.kernel_bytes;
  e.spared_bytes = rank.spared_bytes;
  e.limit = config.memory.limit;
  e.parameters = rank.plan->parameters();
  e.trained_parameters = rank.plan->trained_parameters();
  e.offloaded_bytes = rank.plan->offloaded_bytes();
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
  e.traffic = estimate_traffic(command, config, *rank.plan, e, communicator.size());
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
