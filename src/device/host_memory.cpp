#include "device/host_memory.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

std::optional<int64_t> parse_number(const std::string& text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;  // "max", or beyond int64: no limit
  return value;
}

std::optional<int64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  return in >> word ? parse_number(word) : std::nullopt;
}

/// Value of the line that starts with `key` (kB as in proc/meminfo, or bytes as in memory.stat).
std::optional<int64_t> read_field(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return parse_number(value);
  }
  return std::nullopt;
}

struct ControlGroupFiles {
  const char* limit;
  const char* usage;
  const char* cache;  ///< field of memory.stat: file pages that the kernel reclaims when memory is short
};
constexpr ControlGroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr ControlGroupFiles version_2{"memory.max", "memory.current", "inactive_file"};

void narrow(DeviceMemory& memory, const fs::path& group, const ControlGroupFiles& files) {
  const std::optional<int64_t> limit = read_number(group / files.limit);
  const std::optional<int64_t> usage = read_number(group / files.usage);
  if (!limit || !usage || *limit <= 0) return;
  const int64_t cache = read_field(group / "memory.stat", files.cache).value_or(0);
  memory.total = std::min(memory.total, *limit);
  memory.available = std::min(memory.available, std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cache)));
}

/// Limits of the group at `path` under `mount` and of all groups above it. Inside a container the group's own path may
/// be invisible; the mount itself is then the container's group.
void narrow_upwards(DeviceMemory& memory, const fs::path& mount, const std::string& path,
                    const ControlGroupFiles& files) {
  fs::path relative = fs::path(path).relative_path().lexically_normal();
  while (!relative.empty() && relative != ".") {
    narrow(memory, mount / relative, files);
    relative = relative.parent_path();
  }
  narrow(memory, mount, files);
}

/// True if `name` is an entry of a comma-separated list.
bool lists(const std::string& list, const std::string& name) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry == name) return true;
  }
  return false;
}

}  // namespace

DeviceMemory host_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const int64_t unknown = std::numeric_limits<int64_t>::max() / 1024;
  DeviceMemory memory{};
  memory.total = read_field(meminfo, "MemTotal:").value_or(unknown) * 1024;
  memory.available = read_field(meminfo, "MemAvailable:").value_or(memory.total / 1024) * 1024;

  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");  // lines "hierarchy:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      narrow_upwards(memory, mounts, path, version_2);
      narrow_upwards(memory, mounts / "unified", path, version_2);
    } else if (lists(controllers, "memory")) {
      narrow_upwards(memory, mounts / "memory", path, version_1);
    }
  }
  return memory;
}

std::string host_processor_name(const fs::path& root) {
  std::ifstream in(root / "proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    const size_t end = line.find_last_not_of(" \t");
    if (begin != std::string::npos) return line.substr(begin, end - begin + 1);
  }
#if defined(__aarch64__)
  return "ARM64 processor";
#else
  return "processor";
#endif
}

}  // namespace llmtrain
