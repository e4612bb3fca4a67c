// The numbers of --estimate, and the refusal of plans that do not fit.

#include "tasks/estimate/estimate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "tasks/estimate/memory_limit.hpp"

namespace llmtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class EstimateTest : public ::testing::Test {
 protected:
  EstimateTest() {
    plan_.add(weights_, MemoryCategory::weights, "weights", DType::bf16, {32000});
    plan_.add(shared_, MemoryCategory::gradients, "gradients", DType::f32, {32000}, MemoryScope::shared);
    plan_.reserve_scratch(6400);
    plan_.reserve_workspace(3200);
    estimate_ = {.plan = &plan_,
                 .parameters = 32000,
                 .state_bytes = 384000,
                 .ranks = 8,
                 .ranks_per_node = 4,
                 .library_bytes = 1000};
  }
  nlohmann::json json() const { return nlohmann::json::parse(estimate_json(estimate_)); }

  Arena plan_;
  Tensor weights_, shared_;
  Estimate estimate_;
};

TEST_F(EstimateTest, SaysBytesOfARankByCategoryAndOfANode) {
  const auto j = json();
  EXPECT_EQ(j["ranks"], 8);
  EXPECT_EQ(j["ranks_per_node"], 4);
  EXPECT_EQ(j["parameters"], 32000);
  const nlohmann::json bytes = {{"weights", 64000},    {"gradients", 128000}, {"optimizer", 0},
                                {"activations", 6400}, {"communication", 0},  {"data", 0},
                                {"workspace", 3200},   {"libraries", 1000},   {"total", 202600}};
  EXPECT_EQ(j["bytes_per_rank"], bytes);
  EXPECT_EQ(j["bytes_per_node"], 4 * 202600);
  EXPECT_EQ(j["checkpoint_bytes"], 384000);
  EXPECT_EQ(j["offloaded_bytes_per_rank"], 0);
  EXPECT_FALSE(j.contains("seconds_per_step"));
  EXPECT_THAT(estimate_text(estimate_),
              AllOf(HasSubstr("memory of one rank of 8 (4 on a node), 32000 parameters\n"),
                    HasSubstr("  gradients                128000 bytes   125.0 KiB\n"),
                    HasSubstr("  total                    202600 bytes   197.9 KiB\n"),
                    HasSubstr("  per node                 810400 bytes   791.4 KiB\n"),
                    HasSubstr("  state on disk            384000 bytes   375.0 KiB  (master")));
}

TEST_F(EstimateTest, SaysWhatLiesElsewhere) {
  estimate_.offloaded_bytes = 48000;
  estimate_.pinned_bytes = 1600;
  const auto j = json();
  EXPECT_EQ(j["offloaded_bytes_per_rank"], 48000);
  EXPECT_EQ(j["offloaded_bytes_per_node"], 4 * 48000);
  EXPECT_EQ(j["host_bytes_per_rank"], 1600);
  EXPECT_THAT(estimate_text(estimate_),
              AllOf(HasSubstr("48000 bytes    46.9 KiB  (in parallel.offload_path; 187.5 KiB per node)\n"),
                    HasSubstr("1600 bytes    1.56 KiB  (offloaded to the host; 6.25 KiB per node)\n")));
}

TEST_F(EstimateTest, ANodeIsAFullOneAndTheLastIsSaidApart) {
  EXPECT_FALSE(json().contains("bytes_of_last_node"));
  estimate_.ranks = 6;
  estimate_.last_node = {.ranks = 2, .rank_bytes = 300000};
  const auto j = json();
  EXPECT_EQ(j["bytes_per_node"], 4 * 202600);
  EXPECT_EQ(j["ranks_of_last_node"], 2);
  EXPECT_EQ(j["bytes_of_last_node"], 600000);
  EXPECT_THAT(estimate_text(estimate_),
              AllOf(HasSubstr("memory of one rank of 6 (4 on a node)"), HasSubstr("  per node                 810400 "),
                    HasSubstr("  last node                600000 bytes   585.9 KiB  (the remaining 2 ranks)\n")));
}

TEST_F(EstimateTest, SaysByHowMuchALimitIsExceeded) {
  EXPECT_FALSE(json().contains("memory_limit"));
  const auto line = HasSubstr("beyond limit");
  estimate_.library_bytes += 1 << 20;
  for (const int64_t enough : {int64_t{1251176}, 1251176 - between_starts}) {
    estimate_.limit = enough;
    EXPECT_EQ(json()["bytes_beyond_limit"], 0);
    EXPECT_THAT(estimate_text(estimate_), Not(line));
  }
  estimate_.limit = 1251175 - between_starts;
  EXPECT_EQ(json()["bytes_beyond_limit"], between_starts + 1);
  estimate_.limit = 200000;
  EXPECT_EQ(json()["memory_limit"], 200000);
  EXPECT_EQ(json()["bytes_beyond_limit"], 1051176);
  EXPECT_THAT(estimate_text(estimate_),
              HasSubstr("  beyond limit            1051176 bytes    1.00 MiB  (memory.limit is 195.3 KiB: the run "
                        "would be refused)\n"));
  estimate_.spared_bytes = 1000;
  EXPECT_EQ(json()["bytes_beyond_limit"], 1050176);
  estimate_.last_node = {.ranks = 2, .rank_bytes = 1260000};
  EXPECT_EQ(json()["bytes_beyond_limit"], 1059000) << "the largest rank decides";
}

TEST_F(EstimateTest, BytesThatCannotBeCountedAreAnError) {
  estimate_.pinned_bytes = (int64_t{1} << 61) - 1;
  EXPECT_EQ(estimate_json(estimate_).find('-'), std::string::npos);
  estimate_.ranks_per_node = 5;
  const auto refusal = [&](auto text_of) -> std::string {
    try {
      return text_of(estimate_);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::deck);
      return error.what();
    }
  };
  const auto expected = HasSubstr("5 ranks of 2048.0 PiB on a node need more than 2^63 bytes");
  EXPECT_THAT(refusal(estimate_text), expected);
  estimate_.pinned_bytes = 0;
  estimate_.offloaded_bytes = (int64_t{1} << 61) - 1;
  EXPECT_THAT(refusal(estimate_json), expected);
}

TEST_F(EstimateTest, TimeOfARunIsItsStepsAndEvaluations) {
  estimate_.time =
      Prediction{.step = 0.5, .measured = 7, .evaluation = 3, .steps = 1000, .evaluations = 4, .tokens_per_step = 4096};
  const auto j = json();
  EXPECT_EQ(j["seconds_per_step"], 0.5);
  EXPECT_EQ(j["seconds_per_evaluation"], 3.0);
  EXPECT_EQ(j["seconds_of_run"], 512.0);
  EXPECT_EQ(j["tokens_per_second"], 8192.0);
  EXPECT_EQ(j["measured_steps"], 7);
  EXPECT_EQ(j["steps"], 1000);
  EXPECT_EQ(j["evaluations"], 4);
  EXPECT_THAT(estimate_text(estimate_),
              AllOf(HasSubstr("time, measured from 7 steps on this machine\n"), HasSubstr("8.19 ktok/s"),
                    HasSubstr("3.0 s  (4 evaluations)\n"), HasSubstr("8 min 32 s  (1000 steps;")));
}

TEST(CheckMemory, RefusesWhatIsBeyondTheLimitOrTheRanksShare) {
  const auto refusal = [](int64_t bytes, int64_t limit, int64_t share) -> std::string {
    try {
      check_memory(bytes, limit, share, "deck.ini:3: memory.limit");
      return "";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::deck);
      return error.what();
    }
  };
  constexpr int64_t mib = 1 << 20;
  EXPECT_EQ(refusal(mib, mib, mib), "");
  EXPECT_EQ(refusal(mib + between_starts, mib, 2 * mib), "") << "by which a process differs";
  EXPECT_NE(refusal(mib + between_starts + 1, mib, 2 * mib), "");
  EXPECT_EQ(refusal(mib, 0, mib), "") << "no limit";
  EXPECT_THAT(refusal(2 * mib, mib, 3 * mib),
              HasSubstr("deck.ini:3: memory.limit: the run needs 2.00 MiB per rank, and the limit is 1.00 MiB."));
  const std::string share = device_memory_is_host() ? "share of the node is 1.00 MiB" : "share of the GPU is 1.00 MiB";
  EXPECT_THAT(refusal(2 * mib, 0, mib),
              HasSubstr("not enough memory: the run needs 2.00 MiB per rank, and a rank's " + share));
  EXPECT_THAT(refusal(2 * mib, 3 * mib, mib), HasSubstr(share)) << "a limit is not a promise";
}

}  // namespace
}  // namespace llmtrain
