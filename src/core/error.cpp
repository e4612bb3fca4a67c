#include "core/error.hpp"

#include <fmt/format.h>

namespace llmtrain {

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(fmt::format("{}:{}: {} (expected: {})", file, line, message, condition));
}

}  // namespace llmtrain
