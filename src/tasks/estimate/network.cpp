#include "tasks/estimate/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

namespace {

using Units = std::initializer_list<std::pair<std::string_view, double>>;

[[noreturn]] void refuse_network(const std::string& text) {
  throw UserError(
      ExitCode::command_line,
      fmt::format(
          "command line: --network {}: expected SPEED[,latency=TIME][,ports=N][,flops=RATE][,sockets=N,memory=SPEED], "
          "such as 200Gb/s,latency=2us,ports=2,flops=300T (llmtrain --help shows the usage)",
          text));
}

/// A positive number with one of these units.
double number_with_unit(std::string_view value, const Units& units, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string_view unit(end, static_cast<size_t>(value.data() + value.size() - end));
  const auto* found = std::ranges::find(units, unit, [](const auto& known) { return known.first; });
  if (error != std::errc() || !(number > 1e-30) || !(number < 1e30) || found == units.end()) refuse_network(text);
  return number * found->second;
}

double speed(std::string_view value, const std::string& text) {
  return number_with_unit(value, {{"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"GB/s", 1e9}, {"MB/s", 1e6}}, text);
}

int64_t count(std::string_view value, const std::string& text) {
  const double number = number_with_unit(value, {{"", 1}}, text);
  const auto whole = static_cast<int64_t>(std::min(number, 1e6));
  if (static_cast<double>(whole) != number) refuse_network(text);
  return whole;
}

}  // namespace

Network parse_network(const std::string& text) {
  Network network;
  std::string_view rest = text;
  std::vector<std::string_view> names;
  for (bool first = true; first || !rest.empty(); first = false) {
    const size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (comma != std::string_view::npos && rest.empty()) refuse_network(text);
    const std::string_view named = part.substr(0, part.find('='));
    if (std::ranges::find(names, named) != names.end()) refuse_network(text);
    names.push_back(named);
    const auto takes = [&](std::string_view name) {
      if (!part.starts_with(name)) return false;
      part.remove_prefix(name.size());
      return true;
    };
    if (first) {
      network.bytes_per_second = speed(part, text);
    } else if (takes("latency=")) {
      network.message_seconds = number_with_unit(part, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, text);
    } else if (takes("ports=")) {
      network.ports = count(part, text);
    } else if (takes("flops=")) {
      network.flops = number_with_unit(part, {{"", 1}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}, text);
    } else if (takes("sockets=")) {
      network.sockets = count(part, text);
    } else if (takes("memory=")) {
      network.memory_bytes_per_second = speed(part, text);
    } else {
      refuse_network(text);
    }
  }
  if (network.sockets > 1 && network.memory_bytes_per_second == 0) refuse_network(text);
  return network;
}

double TrafficEstimate::network_seconds(const StepTraffic& traffic) const {
  if (!network) return 0;
  return static_cast<double>(traffic.port_bytes) / (network->bytes_per_second * static_cast<double>(network->ports)) +
         static_cast<double>(traffic.network_messages) * network->message_seconds;
}

double TrafficEstimate::node_seconds(const StepTraffic& traffic) const {
  if (!network || network->memory_bytes_per_second == 0) return 0;
  return static_cast<double>(traffic.node_bytes) /
         (network->memory_bytes_per_second * static_cast<double>(network->sockets));
}

double TrafficEstimate::overlapped_seconds() const {
  double inside_layers = 0;
  for (const TrafficAxis axis : {TrafficAxis::context, TrafficAxis::tensor, TrafficAxis::expert}) {
    const StepTraffic& traffic = axes[static_cast<size_t>(axis)];
    inside_layers += network_seconds(traffic) + node_seconds(traffic);
  }
  return std::max(computing, network_seconds() + node_seconds() - inside_layers) + inside_layers;
}

}  // namespace llmtrain
