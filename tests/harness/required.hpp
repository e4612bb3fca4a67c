#pragma once
// Tests skip what is not there, unless the environment variable LLMTRAIN_REQUIRE says that it must be (tests/run.sh).

#include <cstdlib>
#include <string>

namespace llmtrain::test {

/// Whether the list, as in "cuda,cudnn", has `what`.
inline bool is_required(const std::string& what) {
  const char* list = std::getenv("LLMTRAIN_REQUIRE");
  return list != nullptr && ("," + std::string(list) + ",").find("," + what + ",") != std::string::npos;
}

}  // namespace llmtrain::test
