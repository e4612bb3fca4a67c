#include "system/energy.hpp"

#include <fstream>
#include <system_error>

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

constexpr double microjoules = 1e6;  // of a joule

std::optional<double> read_value(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

/// True for the zones that add up to a node: packages, and the memory of each; their other zones are parts of them.
bool is_counted(const fs::path& zone) {
  if (!zone.filename().string().starts_with("intel-rapl:")) return false;  // intel-rapl-mmio counts the same again
  std::string name;
  std::ifstream(zone / "name") >> name;
  return name.starts_with("package") || name == "dram";
}

}  // namespace

std::map<std::string, EnergyMeter::Counter> EnergyMeter::read(const std::optional<double>& gpus) const {
  if (const auto node = read_value(root_ / "sys/cray/pm_counters/energy")) return {{"node", {*node, 0}}};
  std::map<std::string, Counter> counters;
  std::error_code error;
  for (fs::directory_iterator zone(root_ / "sys/class/powercap", error), end; !error && zone != end;
       zone.increment(error)) {
    if (!is_counted(zone->path())) continue;
    const auto energy = read_value(zone->path() / "energy_uj"),
               range = read_value(zone->path() / "max_energy_range_uj");
    if (energy) counters[zone->path().filename()] = {*energy / microjoules, range.value_or(0) / microjoules};
  }
  if (counters.empty() || !gpus) return {};
  counters["gpus"] = {*gpus, 0};
  return counters;
}

double EnergyMeter::sample(const std::optional<double>& gpus) {
  const auto counters = read(gpus);
  if (last_.empty() && !counters.empty() && !lost_) joules_ = 0;
  for (const auto& [name, before] : last_) {
    const auto found = counters.find(name);
    double used = found == counters.end() ? -1 : found->second.joules - before.joules;
    if (used < 0 && found != counters.end()) used += found->second.range;
    lost_ = lost_ || used < 0;
    joules_ += used;
  }
  if (lost_) joules_ = std::numeric_limits<double>::quiet_NaN();
  last_ = counters;
  return joules_;
}

}  // namespace llmtrain
