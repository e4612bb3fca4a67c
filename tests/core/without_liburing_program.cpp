// Linked with src/core/files/without_liburing.cpp, see CMakeLists.txt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/files/file_queue.hpp"
#include "core/files/io_ring.hpp"

namespace llmtrain {
namespace {

TEST(WithoutLiburing, QueuesFallBackToPlainCallsAndSayWhy) {
  std::vector<char> memory(4096);
  const FileQueue queue(memory.data(), 4096);
  EXPECT_EQ(queue.way(), FileQueue::Way::calls);
  EXPECT_THAT(queue.text(), testing::HasSubstr("built without liburing"));
  EXPECT_EQ(IoRing::library(), "");
}

}  // namespace
}  // namespace llmtrain
