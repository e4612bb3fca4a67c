#include "system/node_sample.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/clock.hpp"
#include "device/host_memory.hpp"
#include "system/energy.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

double ticks_per_second() {
  static const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return ticks;
}

std::optional<double> read_value(const fs::path& file) {
  std::ifstream in(file);
  double value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

/// Text of the line "key: text" of a file such as /proc/1/status; empty if there is none.
std::string field_of(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) return line.substr(key.size() + 1);
  }
  return {};
}

std::optional<double> number_of(const fs::path& file, const std::string& key) {
  std::istringstream text(field_of(file, key));
  double value = 0;
  return text >> value ? std::optional(value) : std::nullopt;
}

/// Adds a value to a sum that is unknown until there is one.
void add(double& sum, const std::optional<double>& value) {
  if (value) sum = std::isnan(sum) ? *value : sum + *value;
}

/// "0-3,8" as {0, 1, 2, 3, 8}.
std::set<int64_t> cores_of_list(const std::string& list) {
  std::set<int64_t> cores;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int64_t first = 0, last = 0;
    char dash = 0;
    if (!(ends >> first)) continue;
    if (!(ends >> dash >> last)) last = first;
    for (int64_t core = first; core <= last; ++core) cores.insert(core);
  }
  return cores;
}

/// First line of /proc/stat: "cpu user nice system idle iowait irq softirq steal guest guest_nice" in ticks. Guests are
/// part of user and nice.
void read_cores(NodeSample& sample, const fs::path& root) {
  std::ifstream in(root / "proc/stat");
  std::string name;
  if (!(in >> name) || name != "cpu") return;
  double all = 0, idle = 0, value = 0;
  for (int field = 0; field < 8 && in >> value; ++field) {
    all += value;
    if (field == 3 || field == 4) idle += value;
  }
  sample.available = all / ticks_per_second();
  sample.busy = (all - idle) / ticks_per_second();
}

/// Cores that the quotas of the process's control groups (version 2) allow, or infinity.
double quota(const fs::path& root) {
  double cores = std::numeric_limits<double>::infinity();
  const auto narrow = [&](const fs::path& group) {
    std::ifstream in(group / "cpu.max");
    double granted = 0, period = 0;
    if (in >> granted >> period && period > 0) cores = std::min(cores, granted / period);  // "max": none
  };
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    for (fs::path group = fs::path(line.substr(3)).relative_path(); !group.empty(); group = group.parent_path()) {
      narrow(mount / group);
    }
  }
  narrow(mount);
  return cores;
}

/// Seconds of a core in /proc/PID/stat: fields 14 and 15, after a name in parentheses that may contain anything.
std::optional<double> processor_seconds(const fs::path& process) {
  std::ifstream in(process / "stat");
  std::string line;
  if (!std::getline(in, line) || line.rfind(')') == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  if (!(fields >> user >> system)) return std::nullopt;
  return (user + system) / ticks_per_second();
}

void read_processes(NodeSample& sample, const NodeScope& scope) {
  std::set<int64_t> cores;
  for (const int64_t id : scope.processes) {
    const fs::path process = scope.root / "proc" / std::to_string(id);
    add(sample.job_processor, processor_seconds(process));
    cores.merge(cores_of_list(field_of(process / "status", "Cpus_allowed_list")));
    const auto memory = [&](const char* key) {
      const auto kibibytes = number_of(process / "status", key);
      return kibibytes ? std::optional(*kibibytes * 1024) : std::nullopt;
    };
    add(sample.job_memory, memory("VmRSS"));
    add(sample.job_memory_peak, memory("VmHWM"));
    add(sample.disk_read, number_of(process / "io", "read_bytes"));
    add(sample.disk_written, number_of(process / "io", "write_bytes"));
  }
  if (!cores.empty()) sample.job_cores = std::min(static_cast<double>(cores.size()), quota(scope.root));
}

/// Counters of /proc/self/net/dev: "name: received packets ... (8 fields) sent ...". Bridges, tunnels and the like
/// repeat the bytes of the devices below them; where there is a device, only devices count, and the loopback never.
void read_network(NodeSample& sample, const fs::path& root) {
  struct Interface {
    bool is_device;
    double received, sent;
  };
  std::vector<Interface> interfaces;
  std::ifstream in(root / "proc/self/net/dev");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' '));
    std::istringstream fields(line.substr(colon + 1));
    double received = 0, sent = 0, skipped = 0;
    fields >> received;
    for (int field = 1; field < 8; ++field) fields >> skipped;
    if (fields >> sent && name != "lo") {
      interfaces.push_back({fs::exists(root / "sys/class/net" / name / "device"), received, sent});
    }
  }
  const bool has_device = std::ranges::any_of(interfaces, &Interface::is_device);
  for (const Interface& interface : interfaces) {
    if (has_device && !interface.is_device) continue;
    add(sample.network_received, interface.received);
    add(sample.network_sent, interface.sent);
  }
}

/// Entries of a folder; none if it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  return paths;
}

void read_infiniband(NodeSample& sample, const fs::path& root) {
  constexpr double bytes_of_word = 4;  // the counters' unit, InfiniBand Architecture Specification, PortCounters
  const auto bytes = [](const fs::path& file) {
    const auto words = read_value(file);
    return words ? std::optional(*words * bytes_of_word) : std::nullopt;
  };
  for (const fs::path& adapter : entries_of(root / "sys/class/infiniband")) {
    for (const fs::path& port : entries_of(adapter / "ports")) {
      add(sample.infiniband_received, bytes(port / "counters/port_rcv_data"));
      add(sample.infiniband_sent, bytes(port / "counters/port_xmit_data"));
    }
  }
}

}  // namespace

NodeSample sample_node(const NodeScope& scope) {
  NodeSample sample;
  sample.time = now();
  read_cores(sample, scope.root);
  read_processes(sample, scope);
  const DeviceMemory memory = host_memory(scope.root);
  sample.memory_limit = static_cast<double>(memory.total);
  sample.memory_used = static_cast<double>(memory.total - memory.available);
  struct statvfs system {};
  if (!scope.folder.empty() && statvfs(scope.folder.c_str(), &system) == 0) {
    sample.disk_free = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize);
  }
  read_network(sample, scope.root);
  read_infiniband(sample, scope.root);
  return sample;
}

std::vector<NamedValue> node_values(const NodeSample& before, const NodeSample& after) {
  std::vector<NamedValue> values;
  const auto put = [&](const char* name, double value) {
    if (std::isfinite(value) && value >= 0) values.push_back({name, {}, value});  // a counter that fell began anew
  };
  const double seconds = after.time - before.time;
  const auto rate = [&](double NodeSample::*counter) { return (after.*counter - before.*counter) / seconds; };
  put("cpu_percent", std::min(100.0, 100 * rate(&NodeSample::busy) / rate(&NodeSample::available)));
  put("job_cpu_percent", 100 * rate(&NodeSample::job_processor) / after.job_cores);
  put("memory_used_bytes", after.memory_used);
  put("memory_limit_bytes", after.memory_limit);
  put("job_memory_bytes", after.job_memory);
  put("job_memory_peak_bytes", after.job_memory_peak);
  put("disk_read_bytes_per_second", rate(&NodeSample::disk_read));
  put("disk_write_bytes_per_second", rate(&NodeSample::disk_written));
  put("disk_free_bytes", after.disk_free);
  put("network_receive_bytes_per_second", rate(&NodeSample::network_received));
  put("network_send_bytes_per_second", rate(&NodeSample::network_sent));
  put("infiniband_receive_bytes_per_second", rate(&NodeSample::infiniband_received));
  put("infiniband_send_bytes_per_second", rate(&NodeSample::infiniband_sent));
  put("power_watts", rate(&NodeSample::joules));
  put("energy_joules", after.joules);
  return values;
}

NodeMonitor::NodeMonitor(NodeMonitorOptions options) : options_(std::move(options)) {
  try {
    thread_ = std::thread([this] {
      try {
        work();
      } catch (const std::exception&) {  // without memory there are no further samples
      }
    });
  } catch (const std::system_error&) {  // without threads there are none at all
  }
}

NodeMonitor::~NodeMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NodeMonitor::work() {
  const GpuUsage gpus(options_.gpus);
  EnergyMeter energy(options_.scope.root);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    NodeSample sample = sample_node(options_.scope);
    sample.joules = energy.sample(gpus.joules());
    const std::vector<NamedValue> of_gpus = gpus.sample();
    lock.lock();
    const bool first = std::isnan(taken_.time);
    if (first) taken_ = sample;
    last_ = sample;
    fresh_ = !first;
    for (const NamedValue& value : of_gpus) {
      Mean& mean = gpus_[value.name];
      mean.sum += value.value;
      ++mean.count;
    }
    stopped_.wait_for(lock, std::chrono::duration<double>(options_.period), [this] { return stop_; });
  }
}

std::vector<NamedValue> NodeMonitor::take() {
  const std::lock_guard lock(mutex_);
  if (!fresh_) return {};
  fresh_ = false;
  std::vector<NamedValue> values = node_values(taken_, last_);
  taken_ = last_;
  for (const auto& [name, mean] : std::exchange(gpus_, {})) {
    values.push_back({name, {}, mean.sum / static_cast<double>(mean.count)});
  }
  return values;
}

}  // namespace llmtrain
