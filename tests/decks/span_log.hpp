#pragma once
// What the tool of span_tool/ was told in a run.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "decks/program.hpp"

namespace llmtrain::test {

struct SpanLog {
  std::map<std::string, int> begun;  ///< how often, by "outer/inner" of the outermost two names
  std::set<std::string> threads, categories;
};

/// Reads the one log whose name begins so. Every thread must have ended as many spans as it began, none before.
inline SpanLog read_span_log(const std::filesystem::path& prefix) {
  SpanLog log;
  std::map<std::string, std::vector<std::string>> open;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(prefix.parent_path())) {
    if (!entry.path().filename().string().starts_with(prefix.filename().string() + ".")) continue;
    ++files;
    std::istringstream text(read_file(entry.path()));
    for (std::string line; std::getline(text, line);) {
      std::istringstream words(line);
      std::string thread, act, category, name;
      words >> thread >> act >> category >> std::ws;
      std::getline(words, name);
      std::vector<std::string>& around = open[thread];
      if (act == "begin") {
        around.push_back(name);
        ++log.begun[around.size() > 1 ? around[0] + "/" + around[1] : name];
        log.threads.insert(thread);
        log.categories.insert(category);
      } else if (around.empty()) {
        ADD_FAILURE() << "a span ends that has not begun";
      } else {
        around.pop_back();
      }
    }
  }
  EXPECT_EQ(files, 1) << prefix;
  for (const auto& [thread, names] : open) EXPECT_TRUE(names.empty()) << names.back() << " has not ended";
  return log;
}

}  // namespace llmtrain::test
