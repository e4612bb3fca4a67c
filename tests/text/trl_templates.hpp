#pragma once
// The chat templates of TRL's wheel, which are not part of this repository.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::test {

/// Returns the folder of TRL's templates: LLMTRAIN_TRL_TEMPLATES, or that of an installed trl; empty if there is none.
inline std::filesystem::path find_trl_templates() {
  namespace fs = std::filesystem;
  if (const char* named = std::getenv("LLMTRAIN_TRL_TEMPLATES")) return named;
  std::vector<fs::path> roots = {"/usr/lib/python3", "/usr/local/lib"};
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* root = std::getenv(name)) roots.push_back(fs::path(root) / "lib");
  }
  if (const char* home = std::getenv("HOME")) roots.push_back(fs::path(home) / ".local/lib");
  std::error_code ignored;
  for (const fs::path& root : roots) {
    for (const auto& python : fs::directory_iterator(root, ignored)) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        fs::path found = python.path() / packages / "trl/chat_templates";
        if (fs::is_directory(found, ignored)) return found;
      }
    }
  }
  return {};
}

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// FNV-1a, as in the scripts of the goldens.
inline std::string hash_of(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char byte : text) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

inline std::string hash_of_file(const std::filesystem::path& path) { return hash_of(bytes_of_file(path)); }

}  // namespace llmtrain::test
