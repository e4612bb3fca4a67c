#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "harness/harness.hpp"
#include "harness/mapped_file.hpp"
#include "harness/temporary_folder.hpp"
#include "parallel/control_communicator.hpp"
#include "parallel/node_array.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {
namespace {

using test::communicator;

TEST(ControlCommunicator, BroadcastsBytesAndText) {
  Communicator& c = communicator();
  for (int root = 0; root < c.size(); ++root) {
    std::array<int64_t, 3> values{};
    if (c.rank() == root) values = {root, 2, 3};
    c.broadcast(values.data(), sizeof values, root);
    EXPECT_EQ(values, (std::array<int64_t, 3>{root, 2, 3}));
    std::string text = c.rank() == root ? std::string("from\0rank", 9) + std::to_string(root) : "something else";
    c.broadcast(text, root);
    EXPECT_EQ(text, std::string("from\0rank", 9) + std::to_string(root));
  }
  std::string empty = c.rank() == 0 ? "" : "not empty";
  c.broadcast(empty);
  EXPECT_EQ(empty, "");
}

TEST(ControlCommunicator, SumsAndMaximaOfIntegers) {
  Communicator& c = communicator();
  std::vector<int64_t> values = {c.rank() + 1, -c.rank(), int64_t{1} << 50};
  c.sum(values);
  const int64_t n = c.size();
  EXPECT_EQ(values, (std::vector<int64_t>{n * (n + 1) / 2, -n * (n - 1) / 2, n << 50}));
  std::vector<int64_t> largest = {c.rank(), -c.rank()};
  c.maximum(largest);
  EXPECT_EQ(largest, (std::vector<int64_t>{n - 1, 0}));
}

// 2^100 cancels between ranks, so that any sum in doubles loses the small terms.
TEST(ControlCommunicator, ExactSumLosesNothing) {
  Communicator& c = communicator();
  ExactSum sum;
  sum.add(std::ldexp(1.0, -60));
  sum.add(c.rank() % 2 == 0 ? std::ldexp(1.0, 100) : -std::ldexp(1.0, 100));
  if (c.size() % 2 != 0 && c.rank() == 0) sum.add(-std::ldexp(1.0, 100));
  c.sum(sum);
  EXPECT_EQ(sum.value(), c.size() * std::ldexp(1.0, -60));
}

TEST(ControlCommunicator, GathersTextsOfAnyLength) {
  Communicator& c = communicator();
  const auto text_of = [](int rank) { return std::string(static_cast<size_t>(rank % 2 == 0 ? 0 : 1000 * rank), 'x'); };
  std::vector<std::string> expected;
  for (int r = 0; r < c.size(); ++r) expected.push_back(text_of(r));
  const std::vector<std::string> on_root = c.rank() == 0 ? expected : std::vector<std::string>();
  EXPECT_EQ(c.gather_all(text_of(c.rank())), expected);
  EXPECT_EQ(c.gather(text_of(c.rank())), on_root);
  // 700 bytes stand in for 512 MiB.
  EXPECT_EQ(mpi_gather_all(text_of(c.rank()), MPI_COMM_WORLD, 700), expected);
  EXPECT_EQ(mpi_gather(text_of(c.rank()), MPI_COMM_WORLD, 700), on_root);
}

TEST(ControlCommunicator, SharesOneCopyOfARootsDataInEachNode) {
  Communicator& c = communicator();
  for (const size_t count : {size_t{0}, size_t{1}, size_t{100000}}) {
    std::vector<int64_t> mine(c.rank() == 0 ? count : 0);
    std::iota(mine.begin(), mine.end(), 7);
    const NodeArray<int64_t> all = NodeArray<int64_t>(mine).shared(c);
    ASSERT_EQ(all.size(), count);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i) + 7);
    const std::vector<std::string> files = c.gather_all(test::mapped_file(all.values().data()));
    for (int rank = 0; rank < c.size(); ++rank) {
      const std::string& file = files[static_cast<size_t>(rank)];
      if (traffic().node_of(rank) != traffic().node_of(c.rank())) continue;
      EXPECT_EQ(file, files[static_cast<size_t>(c.rank())]) << "the copy of the node";
      EXPECT_EQ(file.ends_with(" r--s"), c.node_size() > 1 && count > 0) << "cannot be written: " << file;
    }
  }
}

TEST(ControlCommunicator, AnErrorInARootsDataIsThrownOnAllRanks) {
  const auto fails = []() -> std::vector<int64_t> { throw UserError(ExitCode::bad_content, "file.h5: is damaged"); };
  try {
    make_node_array<int64_t>(communicator(), fails);
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    EXPECT_STREQ(error.what(), "file.h5: is damaged");
  }
}

TEST(ControlCommunicator, CopiesBetweenTwoRanksAlone) {
  Communicator& c = communicator();
  for (int from = 0; from < c.size(); ++from) {
    for (int to = 0; to < c.size(); ++to) {
      std::array<int64_t, 3> values = {c.rank(), 7, -c.rank()};
      c.copy_between(values.data(), sizeof values, from, to);
      const int of = c.rank() == to ? from : c.rank();
      EXPECT_EQ(values, (std::array<int64_t, 3>{of, 7, -of})) << from << " to " << to;
    }
  }
}

TEST(ControlCommunicator, BarrierWaitsForAll) {
  Communicator& c = communicator();
  std::optional<test::TemporaryFolder> folder;
  if (c.rank() == 0) folder.emplace();
  std::string path = folder ? folder->text() : "";
  c.broadcast(path);
  for (int late = 0; late < c.size(); ++late) {
    const auto mark = [&](int rank) { return fmt::format("{}/{}-{}", path, late, rank); };
    if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ofstream(mark(c.rank())) << "x";
    c.barrier();
    for (int rank = 0; rank < c.size(); ++rank) EXPECT_TRUE(std::filesystem::exists(mark(rank))) << mark(rank);
  }
  c.barrier();  // all have finished before the folder is removed
}

}  // namespace
}  // namespace llmtrain
