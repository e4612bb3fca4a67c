#include "params/reduction/reduction_advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/toy_model.hpp"

namespace llmtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Advice for a step of as many micro-batches as groups, whose rows `context` ranks share.
std::string advice(int ranks, int per_node, int64_t groups, Reduction reduction, int stage = 1, int64_t context = 1) {
  ParamStoreOptions o;
  o.compute = DType::bf16;
  o.zero_stage = stage;
  o.size = ranks;
  o.node_size = o.ranks_per_node = per_node;
  o.reduction = reduction;
  o.groups = groups * context;
  o.groups_in_turn = context > 1;
  std::vector<UnitSpec> specs;
  for (int block = 0; block < 4; ++block) {
    specs.push_back({"block " + std::to_string(block), {test::param(std::to_string(block), 4096, 256)}});
  }
  return reduction_advice(UnitStates(specs, o), {groups, groups}, per_node, Transport::shared_memory);
}

TEST(ReductionAdvice, NamesWhatCrossesTheNetworkLess) {
  EXPECT_THAT(advice(64, 8, 128, Reduction::ordered),
              AllOf(HasSubstr("128 reduction groups: a step moves "), HasSubstr(" through the port of a node; "),
                    HasSubstr("parallel.reduction = tree and parallel.reduction_groups = 64 would move ")));
  EXPECT_THAT(advice(64, 8, 64, Reduction::tree), IsEmpty());
  EXPECT_THAT(advice(64, 8, 512, Reduction::tree, 2), HasSubstr("; a new run with parallel.reduction_groups = 64 "))
      << "the owner of a shard receives eight rounds of sums";
}

TEST(ReductionAdvice, NamesWhatKeepsFewerGradients) {
  EXPECT_THAT(advice(2, 2, 64, Reduction::tree),
              AllOf(HasSubstr("64 reduction groups: a rank keeps "), HasSubstr("parallel.reduction_groups = 2 would")));
  EXPECT_THAT(advice(2, 2, 2, Reduction::tree), IsEmpty());
  EXPECT_THAT(advice(2, 2, 64, Reduction::ordered), IsEmpty()) << "nothing crosses a network, and nothing is kept";
  EXPECT_THAT(advice(1, 1, 64, Reduction::tree), IsEmpty()) << "one rank has no better choice";
}

TEST(ReductionAdvice, NamesLargerMicroBatchesWhereRanksShareRows) {
  EXPECT_THAT(advice(16, 4, 16, Reduction::tree, 1, 4),
              AllOf(HasSubstr("16 micro-batches whose rows ranks share: a step moves "),
                    HasSubstr("a new run with 4 of them (batch.micro) would move ")));
  EXPECT_THAT(advice(16, 4, 4, Reduction::tree, 1, 4), IsEmpty()) << "each rank has one";
  EXPECT_THAT(advice(4, 4, 16, Reduction::tree, 1, 4), IsEmpty()) << "nothing crosses a network";
}

}  // namespace
}  // namespace llmtrain
