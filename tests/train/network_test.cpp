#include "tasks/estimate/network.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace llmtrain {
namespace {

TEST(Network, IsParsed) {
  const Network plain = parse_network("200Gb/s");
  EXPECT_DOUBLE_EQ(plain.bytes_per_second, 25e9);
  EXPECT_EQ(plain.ports, 1);
  EXPECT_EQ(plain.flops, 0);
  const Network all = parse_network("12.5GB/s,latency=1.5us,ports=4,flops=300T");
  EXPECT_DOUBLE_EQ(all.bytes_per_second, 12.5e9);
  EXPECT_DOUBLE_EQ(all.message_seconds, 1.5e-6);
  EXPECT_EQ(all.ports, 4);
  EXPECT_DOUBLE_EQ(all.flops, 300e12);
  EXPECT_DOUBLE_EQ(parse_network("800Mb/s").bytes_per_second, 1e8);
  EXPECT_DOUBLE_EQ(parse_network("800MB/s").bytes_per_second, 8e8);
  const Network node = parse_network("200Gb/s,sockets=2,memory=100GB/s");
  EXPECT_EQ(node.sockets, 2);
  EXPECT_DOUBLE_EQ(node.memory_bytes_per_second, 100e9);
}

TEST(Network, OfAnotherFormIsRefused) {
  for (const char* text :
       {"", "200", "200Gb", "Gb/s", "0Gb/s", "-1Gb/s", "200Gb/s,", "200Gb/s,ports=0", "200Gb/s,ports=1.5",
        "200Gb/s,latency=2", "200Gb/s,speed=3", "200Gb/s,,ports=1", "infGb/s", "nanGb/s", "200Gb/s,sockets=2",
        "200Gb/s,sockets=0,memory=1GB/s", "200Gb/s,memory=100G", "200Gb/s,ports=2,ports=3", "1e-320Gb/s"}) {
    EXPECT_THROW(parse_network(text), UserError) << text;
  }
}

TEST(Network, TakesTheTimeOfItsBusiestPort) {
  TrafficEstimate t;
  t.step = {
      .port_bytes = 50'000'000'000, .node_bytes = 100'000'000'000, .messages = 1'000'000, .network_messages = 100'000};
  EXPECT_EQ(t.network_seconds(), 0);
  EXPECT_FALSE(t.has_time());
  t.network = parse_network("200Gb/s,latency=2us,ports=2");
  EXPECT_DOUBLE_EQ(t.network_seconds(), 1.0 + 0.2);
  t.computing = 5;
  EXPECT_DOUBLE_EQ(t.overlapped_seconds(), 5);
  EXPECT_DOUBLE_EQ(t.serial_seconds(), 6.2);
  t.computing = 1;
  EXPECT_DOUBLE_EQ(t.overlapped_seconds(), 1.2);
  EXPECT_EQ(t.node_seconds(), 0) << "unknown";
  t.network = parse_network("200Gb/s,latency=2us,ports=2,sockets=2,memory=100GB/s");
  EXPECT_DOUBLE_EQ(t.node_seconds(), 0.5);
  EXPECT_DOUBLE_EQ(t.overlapped_seconds(), 1.7);
  EXPECT_DOUBLE_EQ(t.serial_seconds(), 2.7);
}

TEST(Network, LayersWaitForRanksThatShareTheirRows) {
  TrafficEstimate t;
  t.network = parse_network("200Gb/s,latency=0.001us");
  t.step = {.port_bytes = 50'000'000'000};
  t.axes[static_cast<size_t>(TrafficAxis::data)] = {.port_bytes = 25'000'000'000};
  t.axes[static_cast<size_t>(TrafficAxis::context)] = {.port_bytes = 25'000'000'000};
  t.computing = 5;
  EXPECT_DOUBLE_EQ(t.overlapped_seconds(), 6);
  EXPECT_DOUBLE_EQ(t.serial_seconds(), 7);
  t.computing = 0.5;
  EXPECT_DOUBLE_EQ(t.overlapped_seconds(), 2);
}

}  // namespace
}  // namespace llmtrain
