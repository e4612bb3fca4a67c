#pragma once
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace llmtrain::test {

/// Device, inode and mode ("r--s") of the file that is mapped at an address; empty if none is.
inline std::string mapped_file(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    char mode[8] = "", device[16] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %*s %15s %lu", &begin, &end, mode, device, &inode) != 5) continue;
    if (begin > at || at >= end) continue;
    return inode == 0 ? "" : std::string(device) + " " + std::to_string(inode) + " " + mode;
  }
  return {};
}

}  // namespace llmtrain::test
