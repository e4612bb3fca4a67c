// What a step moves, as the communicators count it and as the model of traffic predicts it, on pretended nodes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "parallel/toy_trainer.hpp"
#include "params/traffic_model.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::ToyRun;
using test::ToyTrainer;

/// Number of ranks of each node but the last.
int64_t ranks_per_node() {
  int64_t first = 0;
  while (first < communicator().size() && traffic().node_of(static_cast<int>(first)) == 0) ++first;
  return first;
}

/// How this build's ranks reach each other.
Transport transport() {
  if (!device_memory_is_host()) return communicator().note().empty() ? Transport::nccl : Transport::messages;
  std::vector<int64_t> sharing = {communicator().sharing_ranks()};
  communicator().maximum(sharing);
  return sharing[0] > 1 ? Transport::shared_memory : Transport::messages;
}

/// The counts of all ranks, as the metrics have them.
StepTraffic counted(const TrafficCounts& mine) {
  Communicator& c = communicator();
  std::vector<int64_t> sums(4 * static_cast<size_t>(c.node_count()));
  const size_t node = 4 * static_cast<size_t>(traffic().node_of(c.rank()));
  sums[node] = mine[TrafficClass::network].sent;
  sums[node + 1] = mine[TrafficClass::network].received;
  sums[node + 2] = mine[TrafficClass::node].received;
  sums[node + 3] = mine[TrafficClass::own].received;
  c.sum(std::span<int64_t>(sums));
  std::vector<int64_t> largest = {mine.messages(), mine[TrafficClass::network].messages, mine.requests};
  c.maximum(largest);
  StepTraffic t{.messages = largest[0], .network_messages = largest[1], .requests = largest[2]};
  for (size_t n = 0; n < sums.size(); n += 4) {
    t.port_bytes = std::max({t.port_bytes, sums[n], sums[n + 1]});
    t.node_bytes = std::max(t.node_bytes, sums[n + 2]);
    t.own_bytes = std::max(t.own_bytes, sums[n + 3]);
  }
  return t;
}

void expect_equal(const StepTraffic& found, const StepTraffic& wanted, const std::string& where) {
  EXPECT_EQ(found.port_bytes, wanted.port_bytes) << where;
  EXPECT_EQ(found.node_bytes, wanted.node_bytes) << where;
  EXPECT_EQ(found.own_bytes, wanted.own_bytes) << where;
  EXPECT_EQ(found.messages, wanted.messages) << where;
  EXPECT_EQ(found.network_messages, wanted.network_messages) << where;
  EXPECT_LE(found.requests, wanted.requests) << where;
}

TEST(Traffic, IsWhatTheModelPredicts) {
  const bool shared = transport() == Transport::shared_memory, alone = communicator().node_count() == 1;
  for (const auto& [groups, micro_batches, tree] : {std::tuple<int64_t, int64_t, bool>{1, 1, false},
                                                    {3, 2, false},
                                                    {6, 1, false},
                                                    {3, 2, true},
                                                    {7, 1, true},
                                                    {16, 1, true}}) {
    for (int stage = 0; stage <= 2; ++stage) {
      for (const int64_t segment : {default_segment_elements, 4 * chunk_elements}) {
        const ToyRun run{.groups = groups, .tree = tree, .micro_batches = micro_batches, .steps = 2};
        ToyTrainer trainer(run, DType::bf16, stage, {}, segment);
        const StepTraffic found = counted(trainer.train().traffic);
        const StepTraffic wanted = predict_traffic(trainer.units(), ranks_per_node(), transport());
        const std::string where = fmt::format("{}{} groups of {} micro-batches, stage {}, segments of {}",
                                              tree ? "tree, " : "", groups, micro_batches, stage, segment);
        expect_equal(found, wanted, where);
        EXPECT_EQ(wanted.port_bytes == 0, alone) << where;
        EXPECT_EQ(wanted.messages == 0, alone && (shared || communicator().size() == 1)) << where;
      }
    }
  }
}

/// Passes with the order of calls of Decoder, whose gradients are not written.
class DecoderPasses {
 public:
  DecoderPasses(const std::vector<UnitSpec>& units, const ParamStoreOptions& options) : store_(units, options) {
    store_.plan(arena_);
    memory_.emplace(arena_, communicator());
    store_.start(communicator(), test::stream());
    store_.publish_weights();
  }
  TrafficCounts step() {
    const ParamStoreOptions& o = store_.units().options();
    traffic().begin_step();
    GradientReducer& reducer = store_.reducer();
    reducer.begin_step(o.groups);
    for (int64_t round = 0; round < reducer.rounds(); ++round) {
      const bool works = reducer.begin_round(round) >= 0;
      for (int64_t i = 0; i < o.micro_batches_per_group; ++i) {
        reducer.begin_micro_batch(i == 0, i + 1 == o.micro_batches_per_group);
        forward();
        backward(works);
      }
    }
    reducer.finish();
    store_.update([](int, const ParamStore::Shard&) {});
    traffic().end_step();
    return traffic().last_step();
  }
  const UnitStates& units() const { return store_.units(); }

 private:
  int last() const { return store_.units().size() - 1; }
  void use(int unit, int next) {
    store_.acquire(unit);
    if (next >= 0) store_.prefetch(next);
    store_.release(unit);
  }
  void forward() {
    use(0, 1);
    for (int block = 1; block < last(); ++block) use(block, block + 1 < last() ? block + 1 : -1);
    use(last(), -1);
    use(store_.units()[0].spec.spans_backward ? 0 : last(), last() - 1);
  }
  void backward(bool works) {
    use(last(), -1);
    reduce(last(), works);
    for (int block = last() - 1; block > 0; --block) {
      use(block, block > 1 ? block - 1 : -1);
      if (block > 2) store_.prefetch(block - 2);
      reduce(block, works);
    }
    reduce(0, works);
  }
  void reduce(int unit, bool works) {
    const auto params = static_cast<int>(store_.units()[unit].spec.params.size());
    for (int p = params; works && p-- > 0;) store_.gradient(unit, p);
    store_.reduce(unit);
  }

  Arena arena_;
  std::optional<PlannedMemory> memory_;
  ParamStore store_;
};

TEST(Traffic, OfGatheredWeightsIsWhatTheModelPredicts) {
  for (const bool tied : {false, true}) {
    for (const int64_t rows : {16, 200}) {  // of the embedding, smaller and larger than a block
      for (const auto& [blocks, groups, micro_batches] : {std::array<int64_t, 3>{2, 4, 1}, {5, 3, 4}}) {
        for (const bool keeps : {false, true}) {
          std::vector<UnitSpec> units = {{"embedding", {test::param("table", rows, 64)}, tied}};
          for (int64_t b = 0; b < blocks; ++b) {
            units.push_back({fmt::format("block.{}", b), {test::param(fmt::format("b{}", b), 64, 64)}, false});
          }
          units.push_back({"final", {test::param("norm", 64, 1)}, false});
          if (!tied) units.back().params.push_back(test::param("head", rows, 64));
          ParamStoreOptions o;
          o.compute = DType::bf16;
          o.zero_stage = 3;
          o.rank = communicator().rank();
          o.size = communicator().size();
          o.node_size = test::ranks_with_shared_memory();
          o.ranks_per_node = communicator().adding_ranks_per_node();
          o.groups = groups;
          o.micro_batches_per_group = micro_batches;
          o.keeps_gathered = keeps;
          DecoderPasses passes(units, o);
          passes.step();
          const StepTraffic found = counted(passes.step());
          const StepTraffic wanted = predict_traffic(passes.units(), ranks_per_node(), transport());
          const std::string where = fmt::format("{} blocks, {} rows, {} groups of {} micro-batches{}{}", blocks, rows,
                                                groups, micro_batches, tied ? ", tied" : "", keeps ? ", kept" : "");
          expect_equal(found, wanted, where);
        }
      }
    }
  }
}

/// Llama 7B without its data.
std::vector<UnitSpec> llama_7b() {
  std::vector<UnitSpec> units = {{"embedding", {test::param("table", 32000, 4096)}}};
  for (int block = 0; block < 32; ++block) {
    const std::string name = fmt::format("{}.", block);
    units.push_back({"block " + name,
                     {test::param(name + "qkv", 3 * 4096, 4096), test::param(name + "o", 4096, 4096),
                      test::param(name + "up", 2 * 11008, 4096), test::param(name + "down", 4096, 11008)}});
  }
  units.push_back({"head", {test::param("head", 32000, 4096)}});
  return units;
}

/// What a step of many nodes costs is known without the model.
class LargeJob {
 public:
  LargeJob(int64_t nodes, int64_t per_node, Reduction order, int64_t groups) : per_node_(per_node) {
    options_.compute = DType::bf16;
    options_.size = static_cast<int>(nodes * per_node);
    options_.node_size = static_cast<int>(per_node);
    options_.ranks_per_node = static_cast<int>(per_node);
    options_.reduction = order;
    options_.groups = groups;
  }
  UnitStates units() const { return {llama_7b(), options_}; }
  StepTraffic traffic() const { return predict_traffic(units(), per_node_, Transport::shared_memory); }

 private:
  ParamStoreOptions options_;
  int64_t per_node_;
};

TEST(Traffic, GradientsCrossTheNetworkOnceByTheTree) {
  const auto psi = static_cast<double>(LargeJob(64, 8, Reduction::tree, 512).units().parameters());
  const double nodes = 64, others = 1 - 1 / nodes, weights = 2 * psi * others;  // once a node
  for (const int64_t groups : {512, 1024, 4096}) {
    const auto port_bytes = [&](Reduction order) {
      return static_cast<double>(LargeJob(64, 8, order, groups).traffic().port_bytes);
    };
    const double of_groups = 4 * psi * static_cast<double>(groups) / nodes * others;
    EXPECT_NEAR(port_bytes(Reduction::ordered) / (of_groups + weights), 1, 1e-3) << groups;
    EXPECT_NEAR(port_bytes(Reduction::tree) / (4 * psi * others + weights), 1, 1e-3) << groups;
  }
}

TEST(Traffic, OfThousandsOfRanksStaysSmall) {
  for (const auto& [nodes, per_node] : {std::pair<int64_t, int64_t>{64, 4}, {64, 8}, {512, 8}}) {
    const LargeJob job(nodes, per_node, Reduction::tree, nodes * per_node);
    const StepTraffic t = job.traffic();
    int64_t segments = 0;
    for (const UnitState& u : job.units()) segments += std::ssize(u.segments);
    const std::string where = fmt::format("{} nodes of {} ranks", nodes, per_node);
    EXPECT_LE(t.port_bytes, 44'000'000'000) << where;
    EXPECT_LE(t.requests, 4096) << where;
    EXPECT_LE(t.messages, 2 * segments * nodes) << where << ": each segment goes to each other node twice at most";
    EXPECT_EQ(t.messages, t.network_messages) << where;
    const StepTraffic ordered = LargeJob(nodes, per_node, Reduction::ordered, nodes * per_node).traffic();
    EXPECT_GT(ordered.port_bytes, 2 * t.port_bytes) << where << ", control";
    EXPECT_GT(ordered.messages, 2 * t.messages) << where << ", control";
  }
}

}  // namespace
}  // namespace llmtrain
