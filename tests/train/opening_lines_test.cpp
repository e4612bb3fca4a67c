// The opening lines of a log that follow from the deck alone.

#include <gtest/gtest.h>

#include "train/run/libraries.hpp"

namespace llmtrain {
namespace {

TEST(OpeningLines, SayWhoseAttentionIsTaken) {
  const ModelConfig plain;
  ModelConfig dropout;
  dropout.attention_dropout = 0.1;
  const std::string library = "cuDNN 9.9.0";
  EXPECT_EQ(attention_text("", true, plain, DType::bf16), "");
  EXPECT_EQ(attention_text(library, true, plain, DType::bf16), "attention by cuDNN 9.9.0");
  EXPECT_EQ(attention_text(library, true, dropout, DType::bf16),
            "built-in attention: that of cuDNN 9.9.0 is not used with dropout");
  EXPECT_EQ(attention_text(library, false, plain, DType::bf16), "") << "it plans for none";
  EXPECT_EQ(attention_text(library, true, plain, DType::f32),
            "built-in attention: that of cuDNN 9.9.0 is not used in fp32");
  EXPECT_EQ(attention_text("", true, plain, DType::f32), "");
}

}  // namespace
}  // namespace llmtrain
