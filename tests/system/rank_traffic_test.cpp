#include "system/rank_traffic.hpp"

#include <gtest/gtest.h>

#include <map>

namespace llmtrain {
namespace {

TEST(Traffic, KnowsWhoIsNear) {
  Traffic traffic;
  traffic.start(1, {0, 0, 1});
  traffic.begin_step();
  traffic.send(0, 10);
  traffic.send(2, 100);
  traffic.receive(0, 20);
  traffic.receive(2, 200);
  traffic.read(5);
  traffic.add_requests(3);
  traffic.add_requests(-2);
  opened_files() += 2;
  traffic.end_step();
  const TrafficCounts& counts = traffic.last_step();
  EXPECT_EQ(counts.sent, 100);
  EXPECT_EQ(counts.received, 200);
  EXPECT_EQ(counts.within_node, 25);
  EXPECT_EQ(counts.messages, 2);
  EXPECT_EQ(counts.requests, 3);
  EXPECT_EQ(counts.files_opened, 2);
  traffic.begin_step();
  traffic.end_step();
  EXPECT_EQ(traffic.last_step().sent, 0);
  EXPECT_EQ(traffic.last_step().requests, 1) << "one is still in progress";
}

TEST(RankTraffic, IsThatOfTheBusiestNodeAndRank) {
  const std::vector<RankTraffic> ranks = {
      {0, {.sent = 10, .received = 1, .within_node = 7, .messages = 2, .requests = 9}, 2, 4},
      {0, {.sent = 10, .received = 1, .within_node = 8, .messages = 3}, 2, 0},
      {1, {.sent = 5, .received = 30, .within_node = 1, .messages = 1}, 2, 1}};
  std::map<std::string, double> values;
  for (const NamedValue& value : traffic_values(ranks)) values[value.name] = value.value;
  EXPECT_EQ(values.at("traffic/port_bytes"), 30) << "the larger direction of the busiest node";
  EXPECT_EQ(values.at("traffic/node_bytes"), 15);
  EXPECT_EQ(values.at("traffic/messages"), 3);
  EXPECT_EQ(values.at("traffic/requests"), 9);
  EXPECT_EQ(values.at("traffic/files_opened"), 2.5) << "of all ranks, a step";
}

}  // namespace
}  // namespace llmtrain
