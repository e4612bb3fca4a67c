// The opening lines of a log that follow from the deck alone.

#include <gtest/gtest.h>

#include "train/run/job.hpp"

namespace llmtrain {
namespace {

TEST(OpeningLines, SayWhoseAttentionIsTaken) {
  Config config;
  config.precision.compute = PrecisionConfig::Compute::bf16;
  EXPECT_EQ(attention_text("", config), "");
  EXPECT_EQ(attention_text("cuDNN 9.9.0", config), "attention by cuDNN 9.9.0");
  config.model.attention_dropout = 0.1;
  EXPECT_EQ(attention_text("cuDNN 9.9.0", config), "built-in attention: that of cuDNN 9.9.0 is not used with dropout");
  config.model.attention_dropout = 0;
  config.run.task = Task::evaluate;  // which plans for none
  EXPECT_EQ(attention_text("cuDNN 9.9.0", config), "");
  config.run.task = Task::pretrain;
  config.precision.compute = PrecisionConfig::Compute::fp32;
  EXPECT_EQ(attention_text("cuDNN 9.9.0", config), "built-in attention: that of cuDNN 9.9.0 is not used in fp32");
  EXPECT_EQ(attention_text("", config), "");
}

}  // namespace
}  // namespace llmtrain
