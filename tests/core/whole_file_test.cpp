#include "core/files/whole_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) { return FileHandle::open_to_read(path).read_text(100); }

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WholeFile, ReplacesAnOlderOneAtOnce) {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "a.txt").string();
  write_whole_file(path, "older");
  {
    WholeFile file(path);
    file.file().write(0, 3, "new");
    EXPECT_EQ(content(path), "older");
    EXPECT_EQ(files_in(folder.text()), 2U);
    file.publish();
  }
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(files_in(folder.text()), 1U);
}

TEST(WholeFile, LeavesNothingWhenItIsGivenUp) {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "a.txt").string();
  { WholeFile(path).file().write(0, 1, "x"); }
  EXPECT_EQ(files_in(folder.text()), 0U);
}

TEST(WholeFile, TemporaryNamesDiffer) {
  EXPECT_NE(temporary_path("a"), temporary_path("a"));
  EXPECT_TRUE(temporary_path("x/a").starts_with("x/a.")) << "the same file system";
  EXPECT_TRUE(temporary_path("a").ends_with(".tmp")) << "the removal of temporary files looks for this";
}

TEST(WholeFile, WhatCannotBeCreatedIsAnError) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(write_whole_file((folder / "none/a.txt").string(), "x"), UserError);
  fs::create_directory(folder / "is_a_folder");
  write_whole_file((folder / "is_a_folder/inside").string(), "x");
  try {
    write_whole_file((folder / "is_a_folder").string(), "x");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::cannot_create);
    EXPECT_NE(std::string(error.what()).find("is_a_folder: cannot create it"), std::string::npos) << error.what();
  }
  EXPECT_EQ(files_in((folder / "is_a_folder").string()), 1U);
}

}  // namespace
}  // namespace llmtrain
