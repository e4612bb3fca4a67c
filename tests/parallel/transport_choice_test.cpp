#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "parallel/staged_transport.hpp"

namespace llmtrain {
namespace {

TransportChoice choice_of(const std::vector<std::string>& addresses) {
  return choose_transport(addresses, std::vector<std::string>(addresses.size(), "one"));
}

TEST(TransportChoice, OneGpuPerRankTalksByNccl) {
  for (const auto& addresses : std::vector<std::vector<std::string>>{
           {"GPU 0000:1A:00.0 of n1"},
           {"GPU 0000:1A:00.0 of n1", "GPU 0000:3B:00.0 of n1"},
           {"GPU 0000:1A:00.0 of n1", "GPU 0000:1A:00.0 of n2"},  // the same bus address on another node
       }) {
    EXPECT_FALSE(choice_of(addresses).staged);
    EXPECT_EQ(choice_of(addresses).note, "");
  }
}

TEST(TransportChoice, MachinesMayBeCalledAlike) {
  const std::vector<std::string> addresses(2, "GPU 0000:1A:00.0 of localhost");
  EXPECT_FALSE(choose_transport(addresses, std::vector<std::string>{"one", "another"}).staged);
  EXPECT_TRUE(choose_transport(addresses, std::vector<std::string>{"one", "one"}).staged) << "control";
}

TEST(TransportChoice, ASharedGpuStagesAndSaysWhich) {
  const TransportChoice choice = choice_of(
      {"GPU 0000:1A:00.0 of n1", "GPU 0000:3B:00.0 of n1", "GPU 0000:3B:00.0 of n1", "GPU 0000:1A:00.0 of n1"});
  EXPECT_TRUE(choice.staged);
  EXPECT_THAT(choice.note, testing::StartsWith("ranks 1 and 2 share GPU 0000:3B:00.0 of n1: "));
  EXPECT_THAT(choice.note, testing::HasSubstr("--gpus-per-task=1"));
}

TEST(NcclVersions, NamesBothWhereTheyDiffer) {
  EXPECT_EQ(nccl_versions(22809, 22809), "NCCL 2.28.9");
  EXPECT_EQ(nccl_versions(22005, 22809), "NCCL 2.28.9 (built with 2.20.5)");
}

}  // namespace
}  // namespace llmtrain
