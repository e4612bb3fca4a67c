#include "core/files/folder_handle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FolderHandleTest : public testing::Test {
 public:
  FolderHandleTest() {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "model" / "sub");
    std::ofstream(root_ / "outside") << "secret";
    std::ofstream(root_ / "model" / "inside") << "text";
    std::ofstream(root_ / "model" / ".hidden") << "x";
  }
  ~FolderHandleTest() override { std::filesystem::remove_all(root_); }

 protected:
  std::string refusal(const std::string& name, ExitCode code = ExitCode::bad_content) {
    try {
      FolderHandle::open((root_ / "model").string()).open_to_read(name);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "opened";
  }

  std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) / ("folder_handle_test" + std::to_string(getpid()));
};

TEST_F(FolderHandleTest, OpensItsOwnFiles) {
  const FolderHandle folder = FolderHandle::open((root_ / "model").string());
  EXPECT_THAT(folder.names(), ElementsAre("inside", "sub"));
  EXPECT_TRUE(folder.has("inside"));
  EXPECT_FALSE(folder.has("outside"));
  EXPECT_EQ(folder.open_to_read("inside").read_text(10), "text");
  EXPECT_THAT(refusal("nothing", ExitCode::missing_input), HasSubstr("/model/nothing: cannot read it"));
}

TEST_F(FolderHandleTest, NeverLeavesTheFolder) {
  const std::string absolute = (root_ / "outside").string();
  for (const std::string& name : {std::string("../outside"), absolute, std::string(".."), std::string("."),
                                  std::string(), std::string("sub/../inside"), std::string("a\0b", 3),
                                  std::string("a\nb"), std::string("..\\outside"), std::string(5000, 'x')}) {
    EXPECT_THAT(refusal(name), HasSubstr("is not the name of a file in this folder"));
  }
}

// A snapshot of the Hugging Face cache contains only links to ../../blobs.
TEST_F(FolderHandleTest, FollowsLinksAndSaysWhichOnesLeadNowhere) {
  const auto link = [&](const char* target, const char* name) {
    std::filesystem::create_symlink(target, root_ / "model" / name);
  };
  link("../outside", "link");
  link("link", "link_to_link");
  link("../blobs/gone", "broken");
  link("loop_2", "loop_1");
  link("loop_1", "loop_2");
  link("sub", "folder");
  link("/dev/zero", "device");
  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  link("../pipe", "pipe");
  const FolderHandle folder = FolderHandle::open((root_ / "model").string());
  EXPECT_TRUE(folder.has("link"));
  EXPECT_EQ(folder.open_to_read("link").read_text(10), "secret");
  EXPECT_EQ(folder.open_to_read("link_to_link").read_text(10), "secret");
  EXPECT_THAT(refusal("broken", ExitCode::missing_input),
              HasSubstr("a symbolic link to '../blobs/gone', which does not exist"));
  EXPECT_THAT(refusal("loop_1", ExitCode::missing_input), HasSubstr("a symbolic link to 'loop_2': Too many levels"));
  const FolderHandle checkpoint = FolderHandle::open((root_ / "model").string(), FolderHandle::Links::refused);
  EXPECT_EQ(checkpoint.open_to_read("inside").read_text(10), "text");
  EXPECT_THROW(checkpoint.open_to_read("link"), UserError);
  for (const char* name : {"folder", "device", "pipe"}) EXPECT_THAT(refusal(name), HasSubstr("not a regular file"));
}

TEST_F(FolderHandleTest, OpensRegularFilesOnly) {
  EXPECT_THAT(refusal("sub"), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((root_ / "model" / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal("pipe"), HasSubstr("not a regular file"));
  // A link may lead to the folder itself.
  std::filesystem::create_directory_symlink("model", root_ / "alias");
  EXPECT_EQ(FolderHandle::open((root_ / "alias").string()).open_to_read("inside").read_text(10), "text");
  EXPECT_THROW(FolderHandle::open((root_ / "outside").string()), UserError);
  EXPECT_THROW(FolderHandle::open((root_ / "nowhere").string()), UserError);
}

}  // namespace
}  // namespace llmtrain
