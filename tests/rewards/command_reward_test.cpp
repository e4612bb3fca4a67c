// command: rewards: what a program reads and writes, and that each way in which it can go wrong is an error that names
// it, soon, without a process left behind. The program is tests/rewards/score_length.sh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>

#include "core/error.hpp"
#include "rewards/reward_function.hpp"

namespace llmtrain {
namespace {

std::string program(const std::string& mode = "") { return "tests/rewards/score_length.sh " + mode; }

std::vector<double> score(RewardFunction& function, size_t rows, const std::string& completion = "b") {
  const std::vector<RewardRow> all(rows, {"a\n\"", completion, {}, true, R"({"answer": 4})"});
  std::vector<double> rewards(rows, -1);
  function.score(all, rewards, [] {});
  return rewards;
}

/// Every child has been waited for.
bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

std::string refusal(const std::string& command, int64_t seconds = 60, size_t rows = 3) {
  try {
    const auto function = make_command_reward(command, Duration{seconds});
    score(*function, rows);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the next rollout: lines too many have come
    score(*function, rows);
  } catch (const UserError& error) {
    EXPECT_FALSE(has_children());
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& mode, const std::string& what) {
  const std::string message = refusal(program(mode));
  EXPECT_NE(message.find("command:" + program(mode)), std::string::npos) << message;
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

TEST(CommandReward, ALineForEachRowInSeveralBatches) {
  // {"prompt": "a\n\"", "completion": "b", "ended": true, "columns": {"answer": 4}}
  for (const char* mode : {"", "object"}) {
    const auto function = make_command_reward(program(mode), Duration{60});
    EXPECT_EQ(score(*function, 3), (std::vector<double>{79, 79, 79}));
    EXPECT_EQ(score(*function, 1, "bcd"), (std::vector<double>{81}));
    EXPECT_TRUE(score(*function, 0).empty());
    EXPECT_EQ(score(*function, 1, "\xff"), (std::vector<double>{81})) << "three bytes in place of one";
  }
  EXPECT_FALSE(has_children());
}

// As json.dumps and print of Python write a missing reward, beside texts that hold the same words.
TEST(CommandReward, ACompletionMayHaveNoReward) {
  {
    const auto function = make_command_reward(program(R"(say {"why":"NaN","reward":0.5})"), Duration{60});
    EXPECT_EQ(score(*function, 2), (std::vector<double>{0.5, 0.5})) << "the control";
  }
  for (const char* answer : {"null", "NaN", "None", "-nan", R"({"reward":null})", R"({"reward":NaN})",
                             R"({"why":"a\"NaN","reward":-NaN})"}) {
    const auto function = make_command_reward(program("say ") + answer, Duration{60});
    for (const double reward : score(*function, 2)) EXPECT_TRUE(std::isnan(reward)) << answer;
  }
  for (const char* answer : {R"("NaN")", "nancy", "{}", R"({"reward":"null"})", "1e999"})
    expect_refusal(std::string("say ") + answer, "a line must be a finite number");
}

TEST(CommandReward, BatchesLargerThanAPipe) {
  const auto function = make_command_reward("sed -u s/.*/0.5/", Duration{60});
  EXPECT_EQ(score(*function, 2000, std::string(1000, 'x')), std::vector<double>(2000, 0.5));
}

TEST(CommandReward, ProgramsThatGoWrong) {
  expect_refusal("end", "ended with exit code 3 after 0 lines of this batch");
  expect_refusal("rubbish", "wrote 'scored: fine'; a line must be a finite number");
  expect_refusal("leave", "ended with exit code 3 after 0 lines of this batch");
  expect_refusal("twice", "wrote more lines than it was asked for: '");
  expect_refusal("early", "wrote more lines than");
  expect_refusal("long", "wrote a line of more than 65536 bytes: '111");
  EXPECT_NE(refusal("tests/rewards/none.sh").find("cannot be started: No such file or directory"), std::string::npos);
  EXPECT_EQ(refusal(program()), "accepted") << "the control";
}

TEST(CommandReward, AProgramThatHangsIsEndedInTime) {
  for (const char* mode : {"hang", "stuck"}) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = refusal(program(mode), 1, 1000);
    EXPECT_NE(message.find("answered 0 of 1000 lines within rewards.time_limit = 1 s"), std::string::npos) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST(CommandReward, WorkCanBeLeft) {
  struct Left {};
  const auto function = make_command_reward(program("hang"), Duration{600});
  const RewardRow row{"a", "b", {}, true, "{}"};
  double reward = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(function->score({&row, 1}, {&reward, 1}, [] { throw Left(); }), Left);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_FALSE(has_children());
  EXPECT_THROW(score(*function, 1), UserError) << "nothing more is scored";
}

/// Returns true if nothing but this process held its stderr open during `work`, as a launcher sees it that waits for
/// the end of the stream.
bool leaves_stderr(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const int own = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  work();
  ::dup2(own, STDERR_FILENO);
  ::close(own);
  ::close(ends[1]);
  std::array<char, 256> text;
  pollfd event{ends[0], POLLIN, 0};
  ssize_t n = 1;
  while (n > 0 && ::poll(&event, 1, 500) > 0) n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  return n == 0;
}

TEST(CommandReward, AProcessThatLeavesTheGroupHoldsNothing) {
  EXPECT_TRUE(leaves_stderr([] { score(*make_command_reward(program("detach"), Duration{60}), 1); }));
  EXPECT_FALSE(leaves_stderr([] { EXPECT_EQ(std::system("setsid sleep 5 &"), 0); })) << "the control";
}

}  // namespace
}  // namespace llmtrain
