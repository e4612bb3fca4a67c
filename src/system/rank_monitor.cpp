#include "system/rank_monitor.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/machine.hpp"
#include "device/device.hpp"
#include "parallel/job/rank_status.hpp"

namespace llmtrain {

namespace {

/// A rank's place, as it tells the others.
struct Place {
  int node_rank = 0;
  int64_t process = 0;
  std::string process_space;  ///< where the process has this number
  std::string gpu;            ///< bus address; empty: none
  std::string host;
  std::string machine;  ///< unique, unlike the host's name
};

std::string own_gpu() {
  constexpr std::string_view prefix = "GPU ";  // "GPU 0000:1b:00.0 of HOST"
  const std::string address = device_memory_is_host() ? "" : device_address();
  if (!address.starts_with(prefix)) return {};
  return address.substr(prefix.size(), address.find(' ', prefix.size()) - prefix.size());
}

std::string to_line(const Communicator& communicator) {
  const ProcessIdentity own = own_identity();
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", communicator.node_rank(), own.pid, own.pid_namespace, own_gpu(),
                     own.host, own.host + " " + boot_id());
}

Place place_of(const std::string& text) {
  std::istringstream lines(text);
  const auto line = [&] {
    std::string value;
    std::getline(lines, value);
    return value;
  };
  Place place;
  place.node_rank = std::stoi(line());
  place.process = std::stoll(line());
  place.process_space = line();
  place.gpu = line();
  place.host = line();
  place.machine = line();
  return place;
}

/// Names of the ranks' nodes; nodes of equal names are numbered. A machine that counts as several nodes has their ranks
/// one node after the other.
std::vector<std::string> node_names(const std::vector<Place>& places) {
  std::vector<std::string> names;
  std::map<std::string, int> nodes_of_host;
  std::map<std::string, std::string> last_of_machine;
  for (const Place& place : places) {
    std::string& name = last_of_machine[place.machine];
    if (place.node_rank == 0 || name.empty()) {
      const int number = ++nodes_of_host[place.host];
      name = number == 1 ? place.host : fmt::format("{}.{}", place.host, number);
    }
    names.push_back(name);
  }
  return names;
}

/// Counts of a rank in an interval.
struct RankCounts {
  RankTimes times;
  RankTraffic traffic;
};

/// A rank's counts as bytes, and the values of its node after them, a line each.
std::string pack(const RankCounts& counts, const std::string& node, const std::vector<NamedValue>& values) {
  std::string text(sizeof(RankCounts), '\0');
  std::memcpy(text.data(), &counts, sizeof(RankCounts));
  for (const NamedValue& value : values) text += fmt::format("system/{}/{} {}\n", node, value.name, value.value);
  return text;
}

RankCounts unpack(const std::string& text, std::vector<NamedValue>& values) {
  LLMTRAIN_CHECK(text.size() >= sizeof(RankCounts), "a rank sends its counts");
  RankCounts counts;
  std::memcpy(&counts, text.data(), sizeof(RankCounts));
  std::istringstream lines(text.substr(sizeof(RankCounts)));
  NamedValue value;
  while (lines >> value.name >> value.value) values.push_back(value);
  return counts;
}

}  // namespace

RankMonitor::RankMonitor(Communicator& communicator, const RankMonitorOptions& options)
    : communicator_(communicator), traffic_(options.system) {
  std::vector<Place> places;
  for (const std::string& text : communicator.gather_all(to_line(communicator))) places.push_back(place_of(text));
  const std::vector<std::string> names = node_names(places);
  const auto rank = static_cast<size_t>(communicator.rank());
  name_ = names[rank];
  nodes_ = std::set<std::string>(names.begin(), names.end()).size();
  if (communicator.rank() == 0) slow_ = std::make_unique<SlowNodes>(names, options.slow);
  if (!options.system || communicator.node_rank() != 0) return;
  NodeMonitorOptions node;
  node.scope.folder = options.folder;
  for (size_t r = 0; r < places.size(); ++r) {
    if (names[r] != name_) continue;
    if (places[r].process_space == places[rank].process_space) node.scope.processes.push_back(places[r].process);
    if (!places[r].gpu.empty()) node.gpus.push_back(places[r].gpu);
  }
  node_ = std::make_unique<NodeMonitor>(std::move(node));
}

void RankMonitor::add(const StepRecord& record) {
  times_.add(record);
  own_traffic_.add(communicator_.rank(), traffic());
}

SystemRecord RankMonitor::exchange(int64_t step) {
  const std::vector<NamedValue> own = node_ != nullptr ? node_->take() : std::vector<NamedValue>();
  const std::vector<std::string> all =
      communicator_.gather(pack({std::exchange(times_, {}), std::exchange(own_traffic_, {})}, name_, own));
  SystemRecord record;
  if (communicator_.rank() != 0) return record;
  std::vector<RankTimes> ranks;
  std::vector<RankTraffic> moved;
  for (const std::string& text : all) {
    const RankCounts counts = unpack(text, record.values);
    ranks.push_back(counts.times);
    moved.push_back(counts.traffic);
  }
  for (const NamedValue& value : record.values) {
    if (value.name.ends_with("/energy_joules")) joules_[value.name] = value.value;
  }
  if (joules_.size() == nodes_) {
    record.joules = 0;
    for (const auto& [node, joules] : joules_) *record.joules += joules;
  }
  if (traffic_) {
    for (NamedValue& value : traffic_values(moved)) record.values.push_back(std::move(value));
  }
  if (ranks.size() == 1) return record;
  for (NamedValue& value : rank_values(ranks)) record.values.push_back(std::move(value));
  const std::vector<double> ratios = own_ratios(ranks);
  size_t slowest = 0;
  for (size_t r = 1; r < ratios.size(); ++r) {
    if (!(ratios[r] <= ratios[slowest]) && !std::isnan(ratios[r])) slowest = r;
  }
  if (!std::isnan(ratios[slowest])) {
    record.values.push_back({"ranks/slowest/rank", {}, static_cast<double>(slowest)});
    record.values.push_back({"ranks/slowest/ratio", {}, ratios[slowest]});
  }
  record.notices = slow_->update(ranks, step);
  return record;
}

}  // namespace llmtrain
