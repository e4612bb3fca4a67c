// Output on a terminal: a live line that fits, moves and goes away; colours and curves only where they are wanted; and
// nothing of it in a file.

#include "metrics/console.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "harness/temporary_folder.hpp"
#include "metrics/run_log.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

/// An environment variable for the duration of a test; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

/// A terminal of some columns in place of the standard output.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    int slave = -1;
    winsize size{};
    size.ws_col = columns;
    EXPECT_EQ(openpty(&master_, &slave, nullptr, nullptr, &size), 0);
    fcntl(master_, F_SETFL, O_NONBLOCK);
    std::fflush(stdout);
    kept_ = dup(STDOUT_FILENO);
    dup2(slave, STDOUT_FILENO);
    close(slave);
  }
  ~Terminal() {
    std::fflush(stdout);
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(unsigned short columns) const {
    winsize size{};
    size.ws_col = columns;
    ioctl(STDOUT_FILENO, TIOCSWINSZ, &size);
  }
  /// Everything since the last call.
  std::string take() const {
    std::string text;
    char buffer[1024];
    for (ssize_t count = 0; (count = read(master_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int master_ = -1, kept_ = -1;
};

class TerminalOutput : public ::testing::Test {
 protected:
  std::string log() const {
    std::ostringstream text;
    text << std::ifstream(folder / "log.txt").rdbuf();
    return text.str();
  }
  RunLogOptions options() const {
    RunLogOptions o;
    o.run.directory = folder.text();
    o.total_steps = 100;
    o.every_steps = 50;
    o.sinks = {};
    return o;
  }
  static StepRecord record(int64_t step) {
    StepRecord r;
    r.step = step;
    r.loss = 5 - 0.1 * static_cast<double>(step);
    r.tokens = 10;
    r.seconds = 0.5;
    return r;
  }
  /// Output on a terminal of 120 columns in 25 steps.
  std::string live_lines() const {
    const Terminal terminal(120);
    std::string all;
    RunLog run(options());
    for (int64_t step = 1; step <= 25; ++step) {
      run.step(record(step));
      all += terminal.take();
    }
    return all;
  }

  test::TemporaryFolder folder;
  Variable launcher_{"OMPI_COMM_WORLD_SIZE", nullptr}, kind_{"TERM", "xterm"}, colour_{"NO_COLOR", nullptr},
      locale_{"LC_ALL", "C.UTF-8"};
};

TEST_F(TerminalOutput, LiveLineFitsTheTerminalAndItsNewSize) {
  const Terminal terminal(30);
  Console console(folder / "log.txt", true);
  const std::string text(60, 'x');
  console.live(text);
  EXPECT_EQ(terminal.take(), "\r" + std::string(29, 'x') + "\033[K");
  terminal.resize(20);
  console.live(text);
  EXPECT_EQ(terminal.take(), "\r" + std::string(19, 'x') + "\033[K");
  console.live("\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588____");
  EXPECT_THAT(terminal.take(), HasSubstr("\u2588___\033[K")) << "a character of three bytes takes one column";
  console.print("a line");
  EXPECT_EQ(terminal.take(), "\r\033[Ka line\r\n") << "the live line goes away";
  EXPECT_EQ(log(), "a line\n") << "and never was in the log";
}

TEST_F(TerminalOutput, TrainingShowsBarCurveAndTimeLeft) {
  const std::string text = live_lines();
  EXPECT_THAT(text, HasSubstr("step 24/100  [\033[32m=======\033[0m"));
  EXPECT_THAT(text, HasSubstr("24%  loss"));
  EXPECT_THAT(text, HasSubstr("\u2588")) << "the curve begins high";
  EXPECT_THAT(text, HasSubstr("\u2581"));
  EXPECT_THAT(text, HasSubstr("left 38 s"));
}

// A terminal over a slow connection does not hold up short steps.
TEST_F(TerminalOutput, ShortStepsShareALine) {
  for (const double seconds : {1.0 / 64, 0.5}) {
    const Terminal terminal(120);
    std::string text;
    RunLog run(options());
    for (int64_t step = 1; step <= 45; ++step) {
      StepRecord r = record(step);
      r.seconds = seconds;
      run.step(r);
      text += terminal.take();
    }
    const auto shown = std::ranges::count(text, '\r');
    EXPECT_EQ(shown, seconds < 0.1 ? 7 : 45) << "the first and each seventh after it; control: long steps all are";
  }
}

TEST_F(TerminalOutput, CurveNeedsUtf8AndColourIsOptional) {
  {
    const Variable plain("LC_ALL", "C");
    EXPECT_THAT(live_lines(), Not(HasSubstr("\xE2\x96")));
  }
  const Variable none("NO_COLOR", "1");
  const std::string text = live_lines();
  EXPECT_THAT(text, Not(HasSubstr("\033[3")));
  EXPECT_THAT(text, HasSubstr("[=======")) << "the rest stays";
}

TEST_F(TerminalOutput, DumbTerminalsAndLaunchersGetLines) {
  {
    const Variable dumb("TERM", "dumb");
    EXPECT_EQ(live_lines(), "");
  }
  const Variable launcher("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(live_lines(), "");
}

TEST_F(TerminalOutput, FilesGetLinesOnly) {
  testing::internal::CaptureStdout();  // a file
  {
    RunLog run(options());
    for (int64_t step = 1; step <= 50; ++step) run.step(record(step));
  }
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, testing::StartsWith("step  50/100  50%  loss 2.4500"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_EQ(text, log());
}

// Long work has a bar and its time left; short work is not shown; both leave nothing behind.
TEST_F(TerminalOutput, LongWorkHasProgressAndTimeLeft) {
  const Terminal terminal(70);
  const Console console("", true);
  { const Progress work("short work", 10); }
  EXPECT_EQ(terminal.take(), "");
  {
    Progress work("long work", 100);
    for (int64_t i = 1; i <= 60; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      work.add();
    }
  }
  const std::string text = terminal.take();
  EXPECT_THAT(text, HasSubstr("long work  [\033[32m=="));
  EXPECT_THAT(text, testing::ContainsRegex("]   5[0-9] %  left 0\\.[5-9] s|]   5[0-9] %  left 1\\.[0-9] s"));
  EXPECT_THAT(text, testing::EndsWith("\r\033[K"));
}

TEST_F(TerminalOutput, WithoutTerminalWorkShowsNothing) {
  testing::internal::CaptureStdout();
  const Console console("", true);
  EXPECT_FALSE(Progress::is_displayed());
  testing::internal::GetCapturedStdout();
}

TEST(Sparkline, ShowsAllValuesInFewCharacters) {
  Sparkline curve;
  curve.add(1);
  EXPECT_EQ(curve.text(), "");
  curve.add(std::numeric_limits<double>::quiet_NaN());
  curve.add(8);
  EXPECT_EQ(curve.text(), "\u2581\u2588");
  for (int i = 0; i < 1000; ++i) curve.add(1);
  const std::string text = curve.text();
  EXPECT_LE(text.size(), 3 * Sparkline::max_cells);
  EXPECT_GE(text.size(), 3 * Sparkline::max_cells / 2);
  EXPECT_THAT(text, testing::StartsWith("\u2588\u2581")) << "the beginning stays";
}

TEST(Terminal, BarsAndCuts) {
  EXPECT_EQ(bar_text(0, 6), "[    ]");
  EXPECT_EQ(bar_text(0.5, 6), "[==  ]");
  EXPECT_EQ(bar_text(2, 6), "[====]");
  EXPECT_EQ(fit("\u2581\u2582ab", 3), "\u2581\u2582a");
  EXPECT_EQ(fit("ab", 3), "ab");
}

TEST(Console, AFullDiskEndsTheLogAlone) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Console console("/dev/full", true);
  for (const char* line : {"one", "two"}) console.print(line);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "one\ntwo\n");
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("/dev/full: writing 4 bytes failed"));
  EXPECT_EQ(warnings.find("warning", warnings.find("warning") + 1), std::string::npos) << "one warning";
}

}  // namespace
}  // namespace llmtrain
