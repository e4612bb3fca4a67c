#pragma once
#include <filesystem>

#include "device/device.hpp"

namespace llmtrain {

/// Memory of this machine that the process may use: MemTotal and MemAvailable of proc/meminfo, narrowed by the limits
/// of the process's control groups (version 1 or 2), from its own group up to the root. `root` is "/" except in tests.
DeviceMemory host_memory(const std::filesystem::path& root);

/// "model name" of proc/cpuinfo, or the architecture.
std::string host_processor_name(const std::filesystem::path& root);

}  // namespace llmtrain
