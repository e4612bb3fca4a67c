#include "params/axis_traffic.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace llmtrain {
namespace {

/// What the rank of index `from` sends says who sent it to whom.
const GroupExchange numbered{[](int64_t from, int64_t to) { return 10 * from + to; },
                             [](int64_t, int64_t) { return 3; }, 2};

TEST(AxisTraffic, OfNeighboursStaysInTheirNode) {
  const std::vector<int64_t> micro_batches = {1, 2};
  const AxisTraffic t = group_traffic({{2, 1}, 4}, 2, 1, 2, micro_batches, numbered);
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[0], (AxisTraffic::Node{.within = 10 + 1}));
  EXPECT_EQ(t.nodes[1], (AxisTraffic::Node{.within = 2 * (10 + 1)}));
  EXPECT_EQ(t.messages, (std::vector<int64_t>{3, 3, 6, 6}));
  EXPECT_EQ(t.largest().port_bytes, 0);
  EXPECT_EQ(t.largest().node_bytes, 22);
  EXPECT_EQ(t.largest().requests, 2);
}

// Tensor ranks are neighbours, so the context group of rank 0 has ranks 0 and 2, which lie in different nodes.
TEST(AxisTraffic, OfRanksBesideOthersCrossesTheNetwork) {
  const std::vector<int64_t> micro_batches = {5, 5};
  const AxisTraffic t = group_traffic({{2, 2}, 4}, 2, 2, 2, micro_batches, numbered);
  EXPECT_EQ(t.nodes[0], (AxisTraffic::Node{.sent = 2 * 5 * 1, .received = 2 * 5 * 10}));
  EXPECT_EQ(t.nodes[1], (AxisTraffic::Node{.sent = 2 * 5 * 10, .received = 2 * 5 * 1}));
  EXPECT_EQ(t.largest().port_bytes, 100);
  EXPECT_EQ(t.network_messages, (std::vector<int64_t>{15, 15, 15, 15}));
  const AxisTraffic near = group_traffic({{2, 2}, 4}, 4, 2, 2, micro_batches, numbered);
  EXPECT_EQ(near.largest().port_bytes, 0) << "control: all of them in one node";
  EXPECT_EQ(near.largest().node_bytes, 110);
}

TEST(AxisTraffic, IsAddedByNodeAndRank) {
  AxisTraffic a({2, 1}), b({2, 1});
  a.nodes = {{.sent = 5}, {.received = 7}};
  b.nodes = {{.received = 6}, {.received = 1, .within = 3}};
  a.messages = {1, 2};
  b.messages = {5, 0};
  a.add(b);
  EXPECT_EQ(a.largest().port_bytes, 8) << "of one node and direction";
  EXPECT_EQ(a.largest().node_bytes, 3);
  EXPECT_EQ(a.largest().messages, 6);
}

}  // namespace
}  // namespace llmtrain
