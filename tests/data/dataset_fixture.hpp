#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "data_files.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    config_.cache = folder_ / "cache";
    config_.validation_fraction = 0;
    batch_.sequence_length = 8;
    batch_.global = 1;
  }

  Dataset open() {
    reports_.clear();
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); });
  }
  std::string refused() {
    return refusal([&] { open(); });
  }
  bool tokenized() const {
    return std::any_of(reports_.begin(), reports_.end(),
                       [](const std::string& line) { return line.rfind("tokenizing", 0) == 0; });
  }

  Folder folder_;
  SampleRules config_;
  BatchConfig batch_;
  std::unique_ptr<Communicator> communicator_ = make_local_communicator();
  std::vector<std::string> reports_;
};

}  // namespace llmtrain::test
