#include "core/file_handle.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void print_to(const char* file) {
  if (std::freopen(file, "w", stdout) == nullptr) std::_Exit(EXIT_FAILURE);
  try {
    write_standard_output("some text\n");
  } catch (const UserError& error) {
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(EXIT_SUCCESS);
}

TEST(StandardOutput, OnAFullDiskIsAnError) {
  EXPECT_EXIT(print_to("/dev/full"), testing::ExitedWithCode(static_cast<int>(ExitCode::io)), "");
  EXPECT_EXIT(print_to("/dev/null"), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

}  // namespace
}  // namespace llmtrain
