#include "tasks/mesh_traffic.hpp"

#include <algorithm>
#include <vector>

#include "kernels/logprob.hpp"
#include "layers/memory_config.hpp"
#include "params/reduction/reduction_plan.hpp"

namespace llmtrain {

namespace {

/// Micro-batches in a step of each rank of a store.
std::vector<int64_t> micro_batches_of(const ParamStoreOptions& options) {
  const GroupSchedule schedule = ReductionPlan(options).schedule(options.groups);
  std::vector<int64_t> counts(static_cast<size_t>(options.size));
  for (int64_t round = 0; round < schedule.rounds(); ++round) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const bool works = schedule.group_of(round, static_cast<int64_t>(rank)) >= 0;
      counts[rank] += works ? options.micro_batches_per_group : 0;
    }
  }
  return counts;
}

/// Number of statistics of a row, which objectives see of all rows.
int64_t count_statistics(const TrainingPlan& plan) {
  int64_t count = 0;
  TokenStatistics statistics = plan.buffers.statistics;
  statistics.each([&](const Tensor& t) { count += t.rank > 0 ? 1 : 0; });
  return count;
}

/// Rows of all heads become all rows of some heads and back, in each layer (see Attention), and statistics those of all
/// rows.
GroupExchange exchange_of_heads(const Config& config, const TrainingPlan& plan) {
  const ModelConfig& m = config.model;
  const RowShares shares = plan.rows;
  const int64_t element = static_cast<int64_t>(size_of(plan.params().units().options().compute));
  const int64_t blocks = config.parallel.matrix_blocks();
  const auto bytes_of = [&](int64_t heads) {  // of a row, those that a rank has
    return heads * m.head_dim * element * m.n_layers / (shares.ranks * config.parallel.tensor);
  };
  const int64_t keys = std::max(m.n_kv_heads, shares.blocks * blocks);  // with Attention::key_copies
  const int64_t out = bytes_of(m.n_heads), qkv = out + 2 * bytes_of(keys);
  const int64_t forward = config.memory.recompute >= Recompute::attention ? 2 : 1;
  GroupExchange exchange;
  const int64_t statistics = count_statistics(plan), rows = plan.batches().max_rows();
  exchange.bytes = [=](int64_t from, int64_t to) {
    const auto rows_of = [&](int64_t rank) {
      const int64_t of_rank = shares.blocks_of_rank();
      return shares.begin((rank + 1) * of_rank, rows) - shares.begin(rank * of_rank, rows);
    };
    const int64_t sender = rows_of(from), receiver = rows_of(to);
    return forward * (sender * qkv + receiver * out) + sender * out + receiver * qkv + statistics * sender * 4;
  };
  constexpr int64_t parts = 3;  // queries, keys and values are messages of their own
  exchange.messages = m.n_layers * blocks / config.parallel.tensor * (forward + 1) * (parts + 1) + statistics;
  exchange.requests = 2 * parts;
  return exchange;
}

/// Partial sums fp32 [rows, d_model] of the blocks of split matrices: of both branches forward, of their inputs
/// backward, of the embedding and of the head's input. Two ranks swap them; of more each adds its share of the rows,
/// which all of them receive. The softmax has parts of each block of the vocabulary.
GroupExchange exchange_of_sums(const Config& config, const TrainingPlan& plan) {
  const ModelConfig& m = config.model;
  const ParallelConfig& p = config.parallel;
  const int64_t ranks = p.tensor, again = config.memory.recompute == Recompute::block ? 1 : 0;
  const int64_t sums = m.n_layers * (4 + again) + 2;
  const int64_t rows = (plan.batches().max_rows() + p.context - 1) / p.context;
  const int64_t bytes = sums * rows * m.d_model * static_cast<int64_t>(sizeof(float));
  const int64_t parts = p.matrix_blocks() / ranks * rows * static_cast<int64_t>(sizeof(LogprobPart));
  GroupExchange exchange;
  exchange.bytes = [=](int64_t, int64_t) { return (ranks == 2 ? bytes : 2 * bytes / ranks) + parts; };
  exchange.messages = (ranks == 2 ? 1 : 2) * sums + 1;
  exchange.requests = 2;
  return exchange;
}

}  // namespace

MeshTraffic predict_mesh_traffic(const Config& config, const TrainingPlan& plan, const PlannedMesh& mesh,
                                 int64_t ranks_per_node, Transport transport) {
  const UnitStates& units = plan.params().units();
  AxisTraffic all = data_traffic(units, mesh, ranks_per_node, transport, plan.optimizer->whole_tensors(units));
  MeshTraffic traffic;
  if (mesh.ranks_per_micro_batch() > 1) {
    const std::vector<int64_t> micro_batches = micro_batches_of(units.options());
    const auto add = [&](TrafficAxis axis, const AxisTraffic& of_axis) {
      traffic.axes[static_cast<size_t>(axis)] = of_axis.largest();
      all.add(of_axis);
    };
    traffic.axes[static_cast<size_t>(TrafficAxis::data)] = all.largest();
    if (mesh.context > 1) {
      add(TrafficAxis::context, group_traffic(mesh, ranks_per_node, mesh.tensor, mesh.context, micro_batches,
                                              exchange_of_heads(config, plan)));
    }
    if (mesh.tensor > 1) {
      add(TrafficAxis::tensor,
          group_traffic(mesh, ranks_per_node, 1, mesh.tensor, micro_batches, exchange_of_sums(config, plan)));
    }
  }
  traffic.all = all.largest();
  return traffic;
}

int64_t passes_of(const ParamStoreOptions& options) {
  const int64_t at_once = options.size * options.groups_at_once;
  return (options.groups + at_once - 1) / at_once * options.micro_batches_per_group;
}

}  // namespace llmtrain
