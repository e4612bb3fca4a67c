#pragma once
// Tests skip missing features, unless the environment variable LLMTRAIN_REQUIRE lists them (tests/run.sh).

#include <cstdlib>
#include <string>

namespace llmtrain::test {

/// True if the list, as in "cuda,cudnn", has `what`.
inline bool is_required(const std::string& what) {
  const char* list = std::getenv("LLMTRAIN_REQUIRE");
  return list != nullptr && ("," + std::string(list) + ",").find("," + what + ",") != std::string::npos;
}

}  // namespace llmtrain::test
