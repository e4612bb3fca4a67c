// The job dies before any file operation of a save: afterwards the previous or the new checkpoint is found, intact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/toy_state.hpp"

namespace {
bool can_exchange = true;
}

/// Replaces the C library's function: some file systems cannot exchange two names.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (can_exchange) return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  errno = EINVAL;
  return -1;
}

namespace llmtrain {
namespace {

/// Not an exception of the program: nothing is cleaned up, as when the process is killed.
struct Killed {};

class Crash : public testing::Test {
 protected:
  test::ToyFolder folder_{"llmtrain_crash_test"};
  Schema schema_ = make_schema(test::toy_specs());
  std::vector<float> buffer_ = std::vector<float>(500);

  /// One save, and the retention after it.
  void save(int64_t step, const SaveHook& hook = nullptr) {
    save_checkpoint(folder_.path(), test::ToySource(schema_, step), test::toy_request(step), buffer_,
                    test::communicator(), hook);
    apply_retention(folder_.path(), {.keep = 2, .pinned = {}, .verified = {step - 10, step}, .refused = {}}, hook);
  }
  int64_t found_step() {
    const auto found = find_checkpoint(folder_.path(), test::communicator());
    if (!found) return -1;
    EXPECT_TRUE(found->refused.empty());
    test::ToyTarget target(schema_, found->manifest.step, 0, 1);
    load_checkpoint(found->path, found->manifest, target, buffer_, test::communicator());
    EXPECT_EQ(target.right, target.wanted_elements());
    EXPECT_EQ(target.wrong, 0);
    return found->manifest.step;
  }
};

TEST_F(Crash, BeforeEveryOperationOfASave) {
  save(10);
  save(20);
  int64_t step = 30;
  std::vector<std::string> operations;
  int old_found = 0, new_found = 0;
  for (int n = 1;; ++n) {
    int left = n;
    operations.clear();
    bool killed = false;
    try {
      save(step, [&](const std::string& operation) {
        operations.push_back(operation);
        if (--left == 0) throw Killed();
      });
    } catch (const Killed&) {
      killed = true;
    }
    const int64_t found = found_step();
    ASSERT_TRUE(found == step || found == step - 10) << "after " << operations.back() << ": step " << found;
    ++(found == step ? new_found : old_found);
    remove_unfinished_saves(folder_.path());
    EXPECT_EQ(folder_.leftovers(), 0);
    EXPECT_EQ(found_step(), found);
    if (!killed) break;
    if (found == step) step += 10;  // resumed from it; the next save is that of the next step
  }
  EXPECT_THAT(operations, testing::IsSupersetOf({"create attempt", "create shard", "write shard-00000-of-00001.h5",
                                                 "sync shard-00000-of-00001.h5", "sync manifest", "rename attempt",
                                                 "sync folder", "rename link", "rename to tombstone"}));
  EXPECT_GT(old_found, 10);
  EXPECT_GT(new_found, 3);
  EXPECT_EQ(published_steps(folder_.path()).size(), 2u);
}

TEST_F(Crash, WhileAStepIsSavedAgain) {
  save(10);
  save(20);
  std::filesystem::remove(folder_ / (checkpoint_name(20) + "/" + view_name));  // damaged
  for (int n = 1; n < 100; ++n) {
    int left = n;
    try {
      save_checkpoint(folder_.path(), test::ToySource(schema_, 20), test::toy_request(20), buffer_,
                      test::communicator(), [&](const std::string&) {
                        if (--left == 0) throw Killed();
                      });
      break;
    } catch (const Killed&) {
    }
    const auto found = find_checkpoint(folder_.path(), test::communicator());
    ASSERT_TRUE(found);
    if (found->manifest.step == 20) break;
    ASSERT_EQ(found->manifest.step, 10);
    ASSERT_EQ(found->refused.size(), 1u);
    remove_unfinished_saves(folder_.path());
  }
  EXPECT_EQ(found_step(), 20);
}

TEST_F(Crash, WhileTheOnlyCheckpointIsSavedAgainAndNamesCannotBeExchanged) {
  can_exchange = false;
  save(20);
  std::vector<std::string> operations;
  bool killed = true;
  for (int n = 1; killed; ++n) {
    int left = n;
    killed = false;
    try {
      save_checkpoint(folder_.path(), test::ToySource(schema_, 20), test::toy_request(20), buffer_,
                      test::communicator(), [&](const std::string& operation) {
                        operations.push_back(operation);
                        if (--left == 0) throw Killed();
                      });
    } catch (const Killed&) {
      killed = true;
    }
    restore_replaced(folder_.path());
    ASSERT_EQ(found_step(), 20) << "after " << operations.back();
    remove_unfinished_saves(folder_.path());
    EXPECT_EQ(folder_.leftovers(), 0);
  }
  can_exchange = true;
  EXPECT_THAT(operations, testing::IsSupersetOf({"rename attempt over replaced", "remove replaced"}));
}

TEST_F(Crash, AFailureOfEveryOperationLeavesTheOlderOnesAlone) {
  save(10);
  save(20);
  for (int n = 1; n < 100; ++n) {
    int left = n;
    bool failed = false;
    try {
      save_checkpoint(folder_.path(), test::ToySource(schema_, 30), test::toy_request(30), buffer_,
                      test::communicator(), [&](const std::string& operation) {
                        if (--left == 0) throw UserError(ExitCode::io, operation + " failed");
                      });
    } catch (const UserError& error) {
      failed = true;
      EXPECT_EQ(error.code(), ExitCode::io);
    }
    EXPECT_EQ(folder_.leftovers(), 0) << n;
    if (!failed) break;
    const int64_t found = found_step();
    if (found == 30) break;  // published: only links follow
    ASSERT_EQ(found, 20);
  }
  EXPECT_EQ(found_step(), 30);
}

}  // namespace
}  // namespace llmtrain
