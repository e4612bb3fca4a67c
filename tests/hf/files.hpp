#pragma once
// Folders and files that tests write, intact or broken in one place.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

/// Folder of this test alone, empty at first, removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name, bool owner = true)
      : path_(fs::path(testing::TempDir()) / ("llmtrain-hf-" + name)), owner_(owner) {
    if (!owner_) return;
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~ScratchFolder() {
    if (owner_) fs::remove_all(path_);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(at(name), std::ios::binary) << content;
    return at(name);
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(at(name), std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  fs::path path_;
  bool owner_;
};

inline std::string unique_name(const std::string& name) { return name + "-" + std::to_string(getpid()); }

/// Writes 8 bytes of length, the header, and that many bytes of data.
inline std::string safetensors_bytes(const std::string& header, size_t data, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (size_t i = 0; i < data; ++i) bytes += static_cast<char>(i * 37 + 11);
  return bytes;
}
inline std::string safetensors_bytes(const std::string& header, size_t data) {
  return safetensors_bytes(header, data, header.size());
}

/// Returns "accepted", or the message of the UserError with this code.
inline std::string verdict(ExitCode code, const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  return "accepted";
}

}  // namespace llmtrain::test
