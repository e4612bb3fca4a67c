// Replays on emulated GPUs: they change no result, and name a rank that computes wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::HasSubstr;

const DocumentsDeck deck{4, 1, 6, R"([checkpoint]
every_steps = 2
[log]
parameter_hash_every_steps = 1
)", 24, 48};

class EmulatedReplays : public RunFolder {
 protected:
  EmulatedReplays() : RunFolder(text_of_documents(16), deck.text()) {}
};

// A bit of a weight is wrong in products of rank 2 from the fourth step on: its replay finds it.
TEST_F(EmulatedReplays, NameARankThatComputesWrongly) {
  const std::string fault = "bit weights 3 2 7";
  const std::vector<std::string> plain = {"parallel.zero=1"}, replayed = {plain[0], "watchdog.replay_every_steps=2"};
  ASSERT_EQ(start("plain", 1, {}).exit_code, 0);
  ASSERT_EQ(start("replayed", 3, replayed).exit_code, 0);
  EXPECT_EQ(ledger("replayed"), ledger("plain"));
  ASSERT_EQ(start("unnoticed", 3, plain, fault).exit_code, 0);
  EXPECT_NE(ledger("unnoticed"), ledger("plain")) << "control: the bit matters";
  const Outcome hit = start("hit", 3, replayed, fault);
  EXPECT_EQ(hit.exit_code, 76) << hit.output;
  EXPECT_THAT(hit.output, HasSubstr("\nstep 4: the gradients of rank 2 on "));
  EXPECT_THAT(hit.output, HasSubstr("the same command resumes from step 2\n"));
  EXPECT_FALSE(read_file(folder / "hit/excluded_nodes").empty());
  ASSERT_EQ(start("hit", 2, replayed).exit_code, 0);
  EXPECT_EQ(ledger("hit"), ledger("plain"));
}

}  // namespace
}  // namespace llmtrain::test
