#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "config/config.hpp"
#include "convert/convert.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {

inline convert::Conversion converted(const std::string& path, const convert::ConvertOptions& options) {
  Config scratch;
  DeckKeys keys;
  scratch.visit(keys);
  return convert::convert_settings(path, options, keys);
}

/// Files of settings in a folder of their own.
class ConvertTest : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  std::string folder() const { return folder_.text(); }
  convert::Conversion of_text(const std::string& name, const std::string& text, const std::string& from,
                              int64_t ranks = 0) const {
    return converted(file(name, text), {.from = from, .task = "", .ranks = ranks});
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace llmtrain::test
