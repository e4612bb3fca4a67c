// Ranks whose attention backends would give different bits do not start.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "core/machine.hpp"
#include "harness/harness.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run/libraries.hpp"

namespace llmtrain {
namespace {

TEST(AttentionOfRanks, MustBeTheSame) {
  Communicator& communicator = test::runtime().communicator();
  EXPECT_NO_THROW(agree_on_attention("cuDNN 9.19.0", communicator));
  EXPECT_NO_THROW(agree_on_attention("", communicator));
  if (communicator.size() == 1) return;
  try {
    agree_on_attention(communicator.rank() == 1 ? "" : "cuDNN 9.19.0", communicator);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::missing_input);
    const std::string host = host_name();
    EXPECT_THAT(error.what(), testing::HasSubstr("cuDNN 9.19.0 on " + host + "; built-in on " + host + "."));
  }
}

TEST(ProductsOfRanks, MustBeOfOneVersion) {
  Communicator& communicator = test::runtime().communicator();
  EXPECT_NO_THROW(agree_on_products("cuBLASLt 12.8.5", communicator));
  if (communicator.size() == 1) return;
  try {
    agree_on_products(communicator.rank() == 1 ? "cuBLASLt 12.9.1" : "cuBLASLt 12.8.5", communicator);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::missing_input);
    const std::string host = host_name();
    EXPECT_THAT(error.what(), testing::HasSubstr("cuBLASLt 12.8.5 on " + host + "; cuBLASLt 12.9.1 on " + host + "."));
  }
}

}  // namespace
}  // namespace llmtrain
