// A program that a process starts ends with it, even if nothing of the process can run any more.

#include "core/child_process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

namespace llmtrain {
namespace {

bool has_ended(int output, int milliseconds) {
  pollfd event{output, POLLIN, 0};
  std::array<char, 16> rest{};
  return ::poll(&event, 1, milliseconds) > 0 && ::read(output, rest.data(), rest.size()) == 0;
}

TEST(ChildProcess, IsKilledWithItsParent) {
  Descriptor output, its_output;
  open_pipe(output, its_output);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    std::vector<std::string> words = {"sh", "-c", "echo; exec sleep 600"};
    pid_t program = -1;
    const int error =
        SpawnSettings(nothing, its_output.number(), nothing, SpawnSettings::Isolation::group).spawn(program, words);
    if (error != 0) ::_exit(1);
    its_output.close();
    ::pause();
  }
  its_output.close();
  pollfd begun{output.number(), POLLIN, 0};
  ASSERT_EQ(::poll(&begun, 1, 10000), 1);
  std::array<char, 1> line{};
  ASSERT_EQ(::read(output.number(), line.data(), 1), 1);
  EXPECT_FALSE(has_ended(output.number(), 100)) << "control";
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(has_ended(output.number(), 10000));
}

TEST(ChildProcess, ThatCannotBeginIsAnError) {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int file = nothing.number();
  std::vector<std::string> words = {"no-such-program"};
  pid_t program = -1;
  EXPECT_EQ(SpawnSettings(file, file, file, SpawnSettings::Isolation::session).spawn(program, words), ENOENT);
  EXPECT_EQ(program, -1);
}

}  // namespace
}  // namespace llmtrain
