#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "harness/temporary_folder.hpp"
#include "tool/tool.hpp"

namespace llmtrain::test {

struct Outcome {
  int code;
  std::string out, err;
};

/// Runs llmtool in this process, with `input` as its standard input.
inline Outcome llmtool(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), "llmtool");
  std::vector<const char*> argv;
  argv.reserve(arguments.size());
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in(input);
  std::streambuf* const standard_input = std::cin.rdbuf(in.rdbuf());
  std::cin.clear();
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_tool(static_cast<int>(argv.size()), argv.data());
  std::cin.rdbuf(standard_input);
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Tests of subcommands with the files of one folder.
class ToolTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string content(const std::string& name) const { return read_file(path(name)); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.text()), {}));
  }

 private:
  TemporaryFolder folder_;
};

/// Folder of a tiny model as Transformers saved it; expected.json there has Transformers' results for it.
inline std::string golden_model(const std::string& name) { return "tests/reference/hf/" + name; }

}  // namespace llmtrain::test
