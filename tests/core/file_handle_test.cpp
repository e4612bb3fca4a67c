#include "core/files/file_handle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
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

TEST(FileHandle, AFullDiskIsNoWrongName) {
  const auto code = [](int error) {
    try {
      fail_to_create("a", "cannot create it", error);
    } catch (const UserError& failure) {
      EXPECT_THAT(failure.what(), testing::StartsWith("a: cannot create it: "));
      return failure.code();
    }
  };
  for (const int error : {ENOSPC, EDQUOT, EIO}) EXPECT_EQ(code(error), ExitCode::io) << error;
  for (const int error : {EACCES, ENOENT, EROFS, EISDIR}) EXPECT_EQ(code(error), ExitCode::cannot_create) << error;
}

}  // namespace
}  // namespace llmtrain
