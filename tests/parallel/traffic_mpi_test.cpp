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

/// How the ranks of this job reach each other. Collective.
Transport transport() {
  if (!device_memory_is_host()) return communicator().note().empty() ? Transport::nccl : Transport::messages;
  std::vector<int64_t> sharing = {communicator().sharing_ranks()};
  communicator().maximum(sharing);
  return sharing[0] > 1 ? Transport::shared_memory : Transport::messages;
}

/// The counts of all ranks, as the metrics have them.
StepTraffic counted(const TrafficCounts& own) {
  Communicator& c = communicator();
  std::vector<int64_t> sums(3 * static_cast<size_t>(c.node_count()));
  const size_t node = 3 * static_cast<size_t>(traffic().node_of(c.rank()));
  sums[node] = own.sent;
  sums[node + 1] = own.received;
  sums[node + 2] = own.within_node;
  c.sum(std::span<int64_t>(sums));
  std::vector<int64_t> largest = {own.messages, own.requests};
  c.maximum(largest);
  StepTraffic t{0, 0, largest[0], largest[1]};
  for (size_t n = 0; n < sums.size(); n += 3) {
    t.port_bytes = std::max({t.port_bytes, sums[n], sums[n + 1]});
    t.node_bytes = std::max(t.node_bytes, sums[n + 2]);
  }
  return t;
}

TEST(Traffic, IsWhatTheModelPredicts) {
  const Transport way = transport();
  const bool shared = way == Transport::shared_memory, alone = communicator().node_count() == 1;
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
        const StepTraffic wanted = predict_traffic(trainer.units(), ranks_per_node(), way);
        const std::string where = fmt::format("{}{} groups of {} micro-batches, stage {}, segments of {}",
                                              tree ? "tree, " : "", groups, micro_batches, stage, segment);
        EXPECT_EQ(found.port_bytes, wanted.port_bytes) << where;
        EXPECT_EQ(found.node_bytes, wanted.node_bytes) << where;
        EXPECT_EQ(found.messages, wanted.messages) << where;
        EXPECT_LE(found.requests, wanted.requests) << where;
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
  const Transport way = transport();
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
          const StepTraffic wanted = predict_traffic(passes.units(), ranks_per_node(), way);
          const std::string where = fmt::format("{} blocks, {} rows, {} groups of {} micro-batches{}{}", blocks, rows,
                                                groups, micro_batches, tied ? ", tied" : "", keeps ? ", kept" : "");
          EXPECT_EQ(found.port_bytes, wanted.port_bytes) << where;
          EXPECT_EQ(found.node_bytes, wanted.node_bytes) << where;
          EXPECT_EQ(found.messages, wanted.messages) << where;
          EXPECT_LE(found.requests, wanted.requests) << where;
        }
      }
    }
  }
}

/// Goals and costs that are known without the model.
TEST(Traffic, GrowsWithTheGroupsOfTheOrderedReduction) {
  ParamStoreOptions options;
  options.compute = DType::bf16;
  options.size = 512;
  options.node_size = 8;
  std::vector<UnitSpec> specs;
  for (int block = 0; block < 8; ++block) {
    specs.push_back({fmt::format("block {}", block), {test::param(fmt::format("{}", block), 4096, 4096)}});
  }
  const auto psi = static_cast<double>(UnitStates(specs, options).parameters());
  const auto port_bytes = [&](int64_t groups) {
    options.groups = groups;
    return static_cast<double>(predict_traffic(UnitStates(specs, options), 8, Transport::shared_memory).port_bytes);
  };
  const double nodes = 64, weights = 2 * psi * (1 - 1 / nodes);  // once a node
  for (const int64_t groups : {512, 1024, 4096}) {
    const double gradients = 4 * psi * static_cast<double>(groups) / nodes * (1 - 1 / nodes);
    EXPECT_NEAR(port_bytes(groups) / (gradients + weights), 1, 1e-3) << groups;
  }
}

}  // namespace
}  // namespace llmtrain
