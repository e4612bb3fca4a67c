#pragma once
// Folders and files of tests, and the text of a UserError.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "data/files/token_file.hpp"
#include "data/files/token_file_writer.hpp"

namespace llmtrain::test {

/// Folder that is removed at the end of the test.
class Folder {
 public:
  Folder() : path_(temporary_path(testing::TempDir() + "llmtrain-data")) { std::filesystem::create_directories(path_); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string file(const std::string& name, std::string_view content) const {
    std::ofstream(*this / name, std::ios::binary) << content;
    return *this / name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      result.push_back(entry.path().filename().string());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  std::string path_;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns "<exit code> <message>" of the UserError that `work` throws.
inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "nothing was thrown";
}

inline std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> ids(static_cast<size_t>(file.tokens()));
  file.read(0, file.tokens(), ids.data());
  return ids;
}

inline std::vector<uint8_t> all_of_mask(const TokenFile& file) {
  std::vector<uint8_t> mask(static_cast<size_t>(file.tokens()));
  file.read_mask(0, file.tokens(), mask.data());
  return mask;
}

inline std::vector<uint64_t> offsets_of(const TokenFile& file) {
  return {file.documents().begin(), file.documents().end()};
}

/// Writes a small token file at once.
inline void write_token_file(const std::string& path, TokenFileInfo info, std::span<const int32_t> ids,
                             std::span<const uint8_t> mask, std::span<const uint64_t> documents,
                             std::span<const float> values = {}) {
  info.tokens = static_cast<int64_t>(ids.size());
  info.has_mask = !mask.empty();
  LLMTRAIN_CHECK(mask.empty() || mask.size() == ids.size(), "a mask has one entry per token");
  TokenFileWriter writer(path, info, documents, values);
  const TokenRegionWriter region(writer.target());
  region.write(0, ids);
  region.write_mask(0, mask);
  writer.publish();
}

}  // namespace llmtrain::test
