#include <algorithm>
#include <vector>

#include "kernels/logprob.hpp"
#include "layers/memory_config.hpp"
#include "parallel/node_grid.hpp"
#include "params/reduction/reduction_plan.hpp"
#include "tasks/estimate/estimation.hpp"

namespace llmtrain {

namespace {

/// Micro-batches in a step of each rank with rows of its own.
std::vector<int64_t> micro_batches_of(const ParamStoreOptions& options) {
  const GroupSchedule schedule = ReductionPlan(options).schedule(options.groups);
  const int64_t sharing = options.expert_size, own = options.own_groups_at_once();
  std::vector<int64_t> counts(static_cast<size_t>(options.size * sharing));
  for (int64_t round = 0; round < schedule.rounds(); ++round) {
    for (int64_t rank = 0; rank < std::ssize(counts); ++rank) {
      const int64_t first = schedule.group_of(round, rank / sharing);
      const bool works = first >= 0 && first + rank % sharing * own < schedule.groups;
      counts[static_cast<size_t>(rank)] += works ? options.micro_batches_per_group : 0;
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
  const auto trains_sinks = [](const Block& block) { return block.attention.front().sinks.is_trained(); };
  const int64_t sinks = std::ranges::count_if(plan.models.at(Role::policy).actor().blocks(), trains_sinks);
  const int64_t numbers = 4 * sinks * m.n_heads / (shares.ranks * config.parallel.tensor);  // of a row, for their slope
  exchange.bytes = [=](int64_t from, int64_t to) {
    const auto rows_of = [&](int64_t rank) {
      const int64_t of_rank = shares.blocks_of_rank();
      return shares.begin((rank + 1) * of_rank, rows) - shares.begin(rank * of_rank, rows);
    };
    const int64_t sender = rows_of(from), receiver = rows_of(to);
    return forward * (sender * qkv + receiver * out) + sender * out + receiver * (qkv + numbers) +
           statistics * sender * 4;
  };
  constexpr int64_t parts = 3;  // queries, keys and values are messages of their own
  exchange.messages = [of_layers = (m.n_layers * (forward + 1) * (parts + 1) + sinks) * blocks / config.parallel.tensor,
                       statistics](int64_t, int64_t) { return of_layers + statistics; };
  exchange.requests = 2 * parts;
  return exchange;
}

/// Sums and gathers over tensor ranks in a pass over one micro-batch.
class TensorTraffic {
 public:
  explicit TensorTraffic(int64_t ranks) : ranks_(ranks) {}

  /// A sum of fp32 elements, so many times. Two ranks swap them; of more each adds its share, which all of them
  /// receive.
  void add_sum(int64_t elements, int64_t times = 1) {
    if (elements == 0) return;
    const int64_t bytes = times * elements * static_cast<int64_t>(sizeof(float));
    bytes_ += ranks_ == 2 ? bytes : 2 * bytes / ranks_;
    messages_ += (ranks_ == 2 ? 1 : 2) * times;
  }
  /// A gather of this rank's bytes.
  void add_gather(int64_t bytes) {
    bytes_ += bytes;
    ++messages_;
  }
  GroupExchange exchange() const {
    GroupExchange exchange;
    exchange.bytes = [bytes = bytes_](int64_t, int64_t) { return bytes; };
    exchange.messages = [messages = messages_](int64_t, int64_t) { return messages; };
    exchange.requests = 2;
    return exchange;
  }

 private:
  int64_t ranks_, bytes_ = 0, messages_ = 0;
};

/// Sums of a branch of a layer, forward and backward: its output, the gradient of its input, the gradients that its
/// blocks share, and norms of adapters (DoRA).
template <class Layer>
void add_branch(TensorTraffic& traffic, const SplitLayer<Layer>& layer, int64_t elements, int64_t groups,
                int64_t again) {
  traffic.add_sum(elements, 2 + again);
  traffic.add_sum(groups * SharedGradients::elements_of(layer.shared_params()));
  if (layer.front().last().has_magnitudes()) traffic.add_sum(layer.sum.out, 2 + again);
}

/// Sums of attention: those of a branch, of squares and products of norms over all heads, and of the gradients of
/// latent vectors, which may take the place of that of the input.
void add_attention(TensorTraffic& traffic, const SplitAttention& attention, int64_t rows, int64_t groups,
                   Recompute recompute) {
  const int64_t elements = rows * attention.sum.out, again = recompute >= Recompute::block ? 1 : 0;
  if (!attention.splits_norms() && !attention.splits_latent()) {
    return add_branch(traffic, attention, elements, groups, again);
  }
  traffic.add_sum(elements, (attention.sums_input() ? 2 : 1) + again);
  for (const auto& shared : {attention.shared_before(), attention.shared_after()}) {
    traffic.add_sum(groups * SharedGradients::elements_of(shared));
  }
  if (attention.front().last().has_magnitudes()) traffic.add_sum(attention.sum.out, 2 + again);
  if (attention.splits_norms()) traffic.add_sum(2 * rows, recompute >= Recompute::attention ? 3 : 2);
  if (attention.splits_latent()) traffic.add_sum(rows * attention.low.out);
}

/// Sums over the blocks of experts: of a layer's output, of the gradient of its input, and of the gradients of weights.
void add_experts(TensorTraffic& traffic, const Experts& experts, int64_t rows, int64_t groups, int64_t again) {
  traffic.add_sum(rows * experts.channels, 2);
  traffic.add_sum(rows * experts.rule.per_token);
  if (experts.shared) {
    add_branch(traffic, *experts.shared, rows * experts.channels, groups, experts.shared_gate ? again : 0);
  }
}

/// Exchanges of the head over `n` rows: of the parts of the softmax for each block of rows, and of the gradients of its
/// input and of what its blocks share for each group.
void add_head(TensorTraffic& traffic, const SplitHead& split, const TrainingPlan& plan, int64_t n) {
  const Head& head = split.blocks.front();
  const int64_t of_row = std::ssize(split.blocks) * static_cast<int64_t>(sizeof(LogprobPart));
  const DType compute = plan.params().units().options().compute;
  const int64_t group = head.group_rows(compute, n), block = head.block_rows(group);
  const auto gather = [&](int64_t /*first*/, int64_t count) { traffic.add_gather(count * of_row); };
  if (plan.objective->needs().statistics_first) Head::each_run(n, head.block_rows(n), gather);
  const RowShares own{1, plan.rows.blocks_of_rank()};
  for (int64_t index = 0; index < own.blocks; ++index) {
    Head::each_run(own.begin(index + 1, n) - own.begin(index, n), group, [&](int64_t /*first*/, int64_t grouped) {
      Head::each_run(grouped, block, gather);
      traffic.add_sum(grouped * head.linear.in);
      traffic.add_sum(SharedGradients::elements_of(split.shared_params()));
    });
  }
}

/// Sums fp32 over the blocks of split matrices, and gathers of the softmax.
GroupExchange exchange_of_sums(const Config& config, const TrainingPlan& plan) {
  const Recompute recompute = config.memory.recompute;
  const auto again = [&](Recompute level) { return recompute >= level ? int64_t{1} : int64_t{0}; };
  const Decoder& model = plan.models.at(Role::policy).actor();
  const int64_t rows = (plan.batches().max_rows() + plan.rows.ranks - 1) / plan.rows.ranks;
  const int64_t elements = rows * config.model.d_model, groups = plan.rows.blocks_of_rank();
  TensorTraffic traffic(config.parallel.tensor);
  traffic.add_sum(elements);  // of the embedding
  for (const Block& block : model.blocks()) {
    add_attention(traffic, block.attention, rows, groups, recompute);
    if (block.experts) {
      add_experts(traffic, *block.experts, rows, groups, again(Recompute::block));
    } else {
      add_branch(traffic, block.mlp, elements, groups, 0);
    }
  }
  if (!config.model.scores()) add_head(traffic, model.head(), plan, rows);
  return traffic.exchange();
}

/// Nodes of ranks that share experts; one node where rows do not travel by an ExpertRelay.
NodeGrid nodes_of_experts(const PlannedMesh& mesh, int64_t ranks_per_node) {
  const int64_t in_node = ranks_per_node / mesh.tensor;
  const bool relays = ranks_per_node % mesh.tensor == 0 && mesh.ranks_of_blocks() % ranks_per_node == 0 &&
                      in_node > 1 && in_node < mesh.expert;
  return {mesh.expert, relays ? in_node : mesh.expert};
}

/// Probability that a row has an expert among so many of all.
double probability_of_any(const ExpertsConfig& experts, int64_t count) {
  double none = 1;
  for (int64_t i = 0; i < experts.per_token; ++i) {
    none *=
        static_cast<double>(std::max<int64_t>(experts.count - count - i, 0)) / static_cast<double>(experts.count - i);
  }
  return 1 - none;
}

/// Rows to experts and back, where each expert gets as many, and gradients of units without experts. An expert of a
/// rank has its messages with each of the others. Rows to another node go to one of its ranks, which sends them on.
GroupExchange exchange_of_experts(const Config& config, const TrainingPlan& plan, const NodeGrid& grid) {
  const UnitStates& units = plan.params().units();
  const ExpertsConfig& experts = config.model.experts;
  const int64_t ranks = config.parallel.ranks_of_blocks(), layers = experts.layers(config.model.n_layers);
  const int64_t rows = (plan.batches().max_rows() + plan.rows.ranks - 1) / plan.rows.ranks;
  const int64_t pairs = rows * experts.per_token / ranks, width = config.model.d_model;
  const int64_t row = width * static_cast<int64_t>(size_of(units.options().compute)), term = width * 4, weight = 4;
  const int64_t ends = plan.rows.blocks_of_rank() * experts.count * static_cast<int64_t>(sizeof(int64_t));
  // Rows that a node gets, each once for those experts that its ranks have at the same time.
  const ParallelConfig& parallel = config.parallel;
  const int64_t turns = parallel.matrix_blocks() * parallel.expert_blocks(experts.count) / parallel.ranks_of_blocks();
  const int64_t at_once = experts.count / (grid.nodes() * parallel.tensor * turns);
  const auto once = static_cast<int64_t>(static_cast<double>(turns * rows) * probability_of_any(experts, at_once));
  const int64_t order = 2 * rows * experts.per_token * 4, relayed = grid.nodes() - 1;
  int64_t gradients = 0, gradient_messages = 0;
  for (const UnitState& u : units) {
    if (!u.trained() || u.spec.expert_block >= 0) continue;
    const int64_t values = ReductionPlan(units.options()).tree() ? 1 : plan.rows.blocks_of_rank();
    gradients += 4 * values * u.layout.elements();
    gradient_messages += values * std::ssize(u.segments);
  }
  const int64_t in_group = std::max<int64_t>(units.options().micro_batches_per_group, 1);  // of micro-batches
  GroupExchange exchange;
  const auto near = [=](int64_t from, int64_t to) { return grid.node_of(from) == grid.node_of(to); };
  const auto speaks = [=](int64_t from, int64_t to) { return grid.speaker(grid.node_of(to), from) == to; };
  exchange.bytes = [=](int64_t from, int64_t to) {
    const int64_t there = near(from, to)     ? 3 * row * pairs * (1 + relayed)
                          : speaks(from, to) ? 3 * row * once + order
                                             : 0;
    const int64_t back = pairs * (2 * term + weight);
    return layers * (there + pairs * 2 * weight + back + ends) + gradients / in_group;
  };
  exchange.messages = [=](int64_t from, int64_t to) {
    const int64_t each = experts.count / ranks, others = 5 * each + 1;  // weights, terms and their gradients
    const int64_t there = near(from, to) ? 3 * each * (1 + relayed) : speaks(from, to) ? 3 * turns + 2 : 0;
    return layers * (there + others) + gradient_messages / in_group;
  };
  exchange.requests = 2 * 3 * (experts.count / ranks);
  return exchange;
}

}  // namespace

MeshTraffic predict_mesh_traffic(const Config& config, const TrainingPlan& plan, const PlannedMesh& mesh,
                                 int64_t ranks_per_node, Transport transport) {
  const UnitStates& units = plan.params().units();
  AxisTraffic all = data_traffic(units, mesh, ranks_per_node, transport, plan.optimizer->whole_tensors(units));
  MeshTraffic traffic;
  if (mesh.ranks_per_micro_batch() * mesh.expert > 1) {
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
    if (mesh.expert > 1) {
      add(TrafficAxis::expert,
          group_traffic(mesh, ranks_per_node, mesh.tensor, mesh.expert, micro_batches,
                        exchange_of_experts(config, plan, nodes_of_experts(mesh, ranks_per_node))));
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
