#include "train/run/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace llmtrain {

namespace {

using Units = std::initializer_list<std::pair<std::string_view, double>>;

[[noreturn]] void refuse(const std::string& text) {
  throw UserError(
      ExitCode::command_line,
      fmt::format("command line: --network {}: expected SPEED[,latency=TIME][,ports=N][,flops=RATE], such as "
                  "200Gb/s,latency=2us,ports=2,flops=300T (llmtrain --help shows the usage)",
                  text));
}

/// A positive number with one of these units.
double number_with_unit(std::string_view value, const Units& units, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string_view unit(end, static_cast<size_t>(value.data() + value.size() - end));
  const auto* found = std::ranges::find(units, unit, [](const auto& known) { return known.first; });
  if (error != std::errc() || !(number > 0) || !(number < 1e30) || found == units.end()) refuse(text);
  return number * found->second;
}

}  // namespace

Network parse_network(const std::string& text) {
  Network network;
  std::string_view rest = text;
  for (bool first = true; first || !rest.empty(); first = false) {
    const size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (comma != std::string_view::npos && rest.empty()) refuse(text);
    const auto takes = [&](std::string_view name) {
      if (!part.starts_with(name)) return false;
      part.remove_prefix(name.size());
      return true;
    };
    if (first) {
      network.bytes_per_second =
          number_with_unit(part, {{"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"GB/s", 1e9}, {"MB/s", 1e6}}, text);
    } else if (takes("latency=")) {
      network.message_seconds = number_with_unit(part, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, text);
    } else if (takes("ports=")) {
      const double ports = number_with_unit(part, {{"", 1}}, text);
      network.ports = static_cast<int64_t>(std::min(ports, 1e6));
      if (static_cast<double>(network.ports) != ports) refuse(text);
    } else if (takes("flops=")) {
      network.flops = number_with_unit(part, {{"", 1}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}}, text);
    } else {
      refuse(text);
    }
  }
  return network;
}

double TrafficEstimate::network_seconds() const {
  if (!network) return 0;
  return static_cast<double>(step.port_bytes) / (network->bytes_per_second * static_cast<double>(network->ports)) +
         static_cast<double>(step.messages) * network->message_seconds;
}

double TrafficEstimate::overlapped_seconds() const { return std::max(computing, network_seconds()); }

}  // namespace llmtrain
