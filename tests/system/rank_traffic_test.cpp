#include "system/rank_traffic.hpp"

#include <gtest/gtest.h>

#include <map>

namespace llmtrain {
namespace {

TEST(Traffic, IsCountedByClass) {
  Traffic traffic;
  traffic.start(1, {0, 0, 1});
  traffic.begin_step();
  traffic.send(0, 10);
  traffic.send(2, 100);
  traffic.send(2, 1);
  traffic.receive(0, 20);
  traffic.receive(2, 200);
  traffic.receive(1, 5);
  traffic.add_requests(TrafficClass::network, 3);
  traffic.add_requests(TrafficClass::network, -2);
  traffic.add_requests(TrafficClass::node, 1);
  opened_files() += 2;
  traffic.end_step();
  const TrafficCounts& counts = traffic.last_step();
  const auto &own = counts[TrafficClass::own], &node = counts[TrafficClass::node],
             &network = counts[TrafficClass::network];
  EXPECT_EQ(network.sent, 101);
  EXPECT_EQ(network.received, 200);
  EXPECT_EQ(network.messages, 2);
  EXPECT_EQ(network.requests, 3);
  EXPECT_EQ(node.sent, 10);
  EXPECT_EQ(node.received, 20);
  EXPECT_EQ(node.messages, 1);
  EXPECT_EQ(node.requests, 1);
  EXPECT_EQ(own.received, 5);
  EXPECT_EQ(own.sent + own.messages + own.requests, 0);
  EXPECT_EQ(counts.messages(), 3);
  EXPECT_EQ(counts.requests, 3) << "not all were in progress at once";
  EXPECT_EQ(counts.files_opened, 2);
  traffic.begin_step();
  traffic.end_step();
  EXPECT_EQ(traffic.last_step()[TrafficClass::network].sent, 0);
  EXPECT_EQ(traffic.last_step().requests, 2) << "they are still in progress";
}

TEST(Traffic, IsCountedByAxis) {
  Traffic traffic;
  traffic.start(0, {0, 0, 1});
  traffic.begin_step();
  traffic.send(1, 10);
  EXPECT_EQ(traffic.set_axis(TrafficAxis::context), TrafficAxis::data);
  traffic.send(2, 100);
  traffic.receive(2, 300);
  traffic.set_axis(TrafficAxis::data);
  traffic.receive(1, 20);
  traffic.end_step();
  const TrafficCounts& counts = traffic.last_step();
  const auto node = static_cast<size_t>(TrafficClass::node), network = static_cast<size_t>(TrafficClass::network);
  EXPECT_EQ(counts.of(TrafficAxis::data)[node].sent, 10);
  EXPECT_EQ(counts.of(TrafficAxis::data)[node].received, 20);
  EXPECT_EQ(counts.of(TrafficAxis::data)[network].sent, 0);
  EXPECT_EQ(counts.of(TrafficAxis::context)[network].sent, 100);
  EXPECT_EQ(counts.of(TrafficAxis::context)[network].messages, 1);
  EXPECT_EQ(counts[TrafficClass::network].received, 300) << "all axes";
  EXPECT_EQ(counts[TrafficClass::node].sent, 10);
}

RankTraffic of_rank(int64_t node, const TrafficCounts::Class& in_node, const TrafficCounts::Class& network,
                    double files_opened) {
  RankTraffic rank{node, {}, 2, files_opened};
  rank.last[TrafficClass::node] = in_node;
  rank.last[TrafficClass::network] = network;
  rank.last[TrafficClass::own].received = 1000;
  return rank;
}

TEST(RankTraffic, IsThatOfTheBusiestNodeAndRank) {
  std::vector<RankTraffic> ranks = {
      of_rank(0, {.received = 7}, {.sent = 10, .received = 1, .messages = 2}, 4),
      of_rank(0, {.received = 8, .messages = 1}, {.sent = 10, .received = 1, .messages = 2}, 0),
      of_rank(1, {.received = 1}, {.sent = 5, .received = 30, .messages = 1}, 1)};
  ranks[0].last.requests = 9;
  std::map<std::string, double> values;
  for (const NamedValue& value : traffic_values(ranks)) values[value.name] = value.value;
  EXPECT_EQ(values.at("traffic/port_bytes"), 30) << "the larger direction of the busiest node";
  EXPECT_EQ(values.at("traffic/node_bytes"), 15);
  EXPECT_EQ(values.at("traffic/messages"), 3);
  EXPECT_EQ(values.at("traffic/requests"), 9);
  EXPECT_EQ(values.at("traffic/files_opened"), 2.5) << "of all ranks, a step";
  EXPECT_EQ(values.size(), 5u) << "one axis has no rows of its own";
}

TEST(RankTraffic, HasRowsOfEachAxisThatIsUsed) {
  constexpr auto network = static_cast<size_t>(TrafficClass::network);
  std::vector<RankTraffic> ranks = {of_rank(0, {}, {.sent = 10, .messages = 3}, 0),
                                    of_rank(1, {}, {.sent = 12, .messages = 2}, 0)};
  ranks[0].last.axes[static_cast<size_t>(TrafficAxis::data)][network] = {.sent = 9, .messages = 1};
  ranks[0].last.axes[static_cast<size_t>(TrafficAxis::context)][network] = {.sent = 1, .messages = 2};
  ranks[1].last.axes[static_cast<size_t>(TrafficAxis::context)][network] = {.sent = 12, .messages = 2};
  std::map<std::string, double> values;
  for (const NamedValue& value : traffic_values(ranks)) values[value.name] = value.value;
  EXPECT_EQ(values.at("traffic/port_bytes"), 12);
  EXPECT_EQ(values.at("traffic/data/port_bytes"), 9);
  EXPECT_EQ(values.at("traffic/context/port_bytes"), 12);
  EXPECT_EQ(values.at("traffic/data/messages"), 1);
  EXPECT_EQ(values.at("traffic/context/messages"), 2);
  EXPECT_FALSE(values.contains("traffic/tensor/port_bytes"));
}

}  // namespace
}  // namespace llmtrain
