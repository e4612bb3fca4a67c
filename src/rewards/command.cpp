// command:PROGRAM: rewards of a program of the user.

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/activity.hpp"
#include "core/child_process.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "rewards/reward_function.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t max_reward_line = size_t{1} << 16;   ///< longest line of its output, bytes
constexpr int64_t max_time_limit = int64_t{1} << 30;  ///< seconds
constexpr int grace_milliseconds = 20;                ///< in which lines too many are awaited
constexpr int64_t poll_milliseconds = 100;            ///< between two looks at requests to stop
constexpr auto patience_at_end = 2s;                  ///< after the end of its input

/// A program that answers lines with lines. What it starts is in its process group and ends with it. A process that
/// leaves the group keeps nothing of this process open, not even its stderr, for whose end the job's launcher waits:
/// the program has a pipe, from which its messages are passed on.
class LineProgram {
 public:
  explicit LineProgram(const std::string& command) : command_(command) {
    std::istringstream stream(command);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    std::array<int, 2> input{};
    // A socket rather than a pipe: writing to a program that has ended gives an error and no signal.
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input.data()) != 0)
      throw Error("cannot create a socket for a program");
    input_.reset(input[0]);
    const Descriptor its_input(input[1]);
    Descriptor its_output, its_messages;
    open_pipe(output_, its_output);
    open_pipe(messages_, its_messages);
    const int error =
        SpawnSettings(its_input.number(), its_output.number(), its_messages.number(), SpawnSettings::Isolation::group)
            .spawn(process_, words);
    if (error == 0) return;
    throw UserError(ExitCode::missing_input,
                    fmt::format("rewards.functions: command:{}: the program cannot be started: {} (a path with /, or "
                                "a name in PATH; it must be executable)",
                                command, std::strerror(error)));
  }
  ~LineProgram() { end(patience_at_end); }
  LineProgram(const LineProgram&) = delete;
  LineProgram& operator=(const LineProgram&) = delete;

  /// Sends the lines and returns as many. Throws UserError, or what `pause` throws; the program is then ended.
  std::vector<std::string> answer(std::string_view sent, size_t count, Duration limit,
                                  const std::function<void()>& pause) {
    if (!output_.open()) refuse("was terminated after an error", "");
    try {
      return exchange(sent, count, limit, pause);
    } catch (...) {
      end(0s);
      throw;
    }
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
    end(0s);
    throw UserError(ExitCode::bad_content, fmt::format("rewards.functions: command:{}: the program {}{}{}", command_,
                                                       what, remedy.empty() ? "" : "; ", remedy));
  }

 private:
  std::vector<std::string> exchange(std::string_view sent, size_t count, Duration limit,
                                    const std::function<void()>& pause) {
    const auto deadline = Clock::now() + std::chrono::seconds(std::min(limit.seconds, max_time_limit));
    std::vector<std::string> lines;
    receive(lines, 0);
    while (lines.size() < count || !sent.empty()) {
      wait(!sent.empty(), deadline, limit, lines.size(), count);
      if (!sent.empty()) send(sent);
      receive(lines, count);
      pause();
    }
    pollfd more{output_.number(), POLLIN, 0};
    if (::poll(&more, 1, grace_milliseconds) > 0) receive(lines, count);  // refuses further lines
    if (!received_.empty()) refuse_extra();
    pass_messages();
    return lines;
  }

  void wait(bool sends, Clock::time_point deadline, Duration limit, size_t done, size_t count) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    std::array<pollfd, 3> events = {pollfd{output_.number(), POLLIN, 0}, pollfd{messages_.number(), POLLIN, 0},
                                    pollfd{input_.number(), POLLOUT, 0}};
    if (!messages_.open()) events[1].fd = -1;
    const int ready =
        left <= 0 ? 0 : ::poll(events.data(), sends ? 3 : 2, static_cast<int>(std::min(left, poll_milliseconds)));
    report_progress();
    if (ready < 0 && errno != EINTR) throw Error("poll of a program failed");
    pass_messages();
    if (ready == 0 && has_ended()) refuse_end(done);  // something that it started may hold its output open
    if (ready > 0 || Clock::now() < deadline) return;
    refuse(fmt::format("answered {} of {} lines within rewards.time_limit = {} s{}", done, count, limit.seconds,
                       received_.empty() ? "" : ", and then part of one: " + shown(received_)),
           "it must write a line for each line that it reads and flush its output (python3 -u), or needs more time");
  }

  void send(std::string_view& rest) {
    const ssize_t n = ::send(input_.number(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      rest.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      rest = {};  // what it has written, or its end, is read next
    } else if (errno != EAGAIN && errno != EINTR) {
      throw Error("sending lines to a program failed");
    }
  }

  /// Moves whole lines of the output to `lines`, of which there may be `count`.
  void receive(std::vector<std::string>& lines, size_t count) {
    std::array<char, 65536> buffer;
    for (;;) {
      const ssize_t n = ::read(output_.number(), buffer.data(), buffer.size());
      if (n == 0 && count > 0 && lines.size() == count) return;  // all that was asked for
      if (n == 0) refuse_end(lines.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0) throw Error("reading the output of a program failed");
      received_.append(buffer.data(), static_cast<size_t>(n));
      for (size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
        if (lines.size() == count) refuse_extra();
        lines.push_back(received_.substr(0, end));
        received_.erase(0, end + 1);
      }
      if (received_.size() > max_reward_line) {
        refuse(fmt::format("wrote a line of more than {} bytes: {}", max_reward_line, shown(received_)),
               "a line is a number, null or {\"reward\": number}");
      }
    }
  }

  /// Passes on what the program has written to its stderr.
  void pass_messages() {
    std::array<char, 4096> buffer;
    for (int part = 0; part < 64 && messages_.open(); ++part) {  // it may write for ever
      const ssize_t n = ::read(messages_.number(), buffer.data(), buffer.size());
      if (n > 0) std::fwrite(buffer.data(), 1, static_cast<size_t>(n), stderr);
      if (n == 0) messages_.close();
      if (n < 0 && errno != EINTR) return;
    }
  }

  bool has_ended() const {
    siginfo_t info{};
    return wait_for_end(0s, info);
  }

  [[noreturn]] void refuse_extra() {
    refuse(fmt::format("wrote more lines than it was asked for: {}", shown(received_)),
           "write one line for each line read, and messages to stderr");
  }

  [[noreturn]] void refuse_end(size_t done) {
    siginfo_t info{};
    const bool known = wait_for_end(1s, info);
    const std::string how = !known                       ? "closed its output"
                            : info.si_code == CLD_EXITED ? fmt::format("ended with exit code {}", info.si_status)
                                                         : fmt::format("was killed by signal {}", info.si_status);
    refuse(fmt::format("{} after {} lines of this batch{}", how, done,
                       received_.empty() ? "" : ", its last output was " + shown(received_)),
           "it must run until its input ends; see what it wrote to stderr");
  }

  static std::string shown(const std::string& text) { return printable(text.substr(0, 200)); }

  /// Returns false if it still runs. It stays a zombie, so that its number is not given to another process.
  bool wait_for_end(Clock::duration patience, siginfo_t& info) const {
    const auto deadline = Clock::now() + patience;
    for (;;) {
      info.si_pid = 0;
      if (::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return true;
      if (info.si_pid != 0) return true;
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(5ms);
    }
  }

  /// Ends its input, and after some time the program itself.
  void end(Clock::duration patience) {
    if (!input_.open()) return;
    input_.close();
    siginfo_t info{};
    wait_for_end(patience, info);
    output_.close();
    ::kill(-process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
    pass_messages();
    messages_.close();
  }

  std::string command_;
  pid_t process_ = -1;
  Descriptor input_, output_, messages_;
  std::string received_;  // output that is not yet a line
};

/// JSON without the NaN and None that programs in Python print for "no reward": null stands for both.
std::string with_null(std::string_view line) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < line.size();) {
    const size_t length = quoted ? 0 : std::min(line.find_first_not_of(letters, i), line.size()) - i;
    const std::string_view word = line.substr(i, std::max<size_t>(length, quoted && line[i] == '\\' ? 2 : 1));
    if (word == "\"") quoted = !quoted;
    if (word == "NaN" || word == "nan" || word == "None") {
      if (out.ends_with('-')) out.pop_back();
      out += "null";
    } else {
      out += word;
    }
    i += word.size();
  }
  return out;
}

class CommandReward final : public RewardFunction {
 public:
  CommandReward(const std::string& command, Duration time_limit) : time_limit_(time_limit), program_(command) {}

  void score(std::span<const RewardRow> rows, std::span<double> rewards, const std::function<void()>& pause) override {
    std::string lines;
    for (const RewardRow& row : rows) append_line(row, lines);
    const std::vector<std::string> answers = program_.answer(lines, rows.size(), time_limit_, pause);
    for (size_t i = 0; i < answers.size(); ++i) rewards[i] = reward_of(answers[i]);
  }

 private:
  static void append_line(const RewardRow& row, std::string& lines) {
    const auto text = [](const std::string& value) {
      return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    };
    std::string columns(row.columns.empty() ? "{}" : row.columns);
    std::ranges::replace(columns, '\n', ' ');  // JSON has line breaks between its values only
    lines += fmt::format("{{\"prompt\": {}, \"completion\": {}, \"ended\": {}, \"columns\": {}}}\n", text(row.prompt),
                         text(row.completion), row.ended, columns);
  }

  double reward_of(const std::string& line) {
    nlohmann::json value = nlohmann::json::parse(with_null(line), nullptr, false);
    if (value.is_object() && value.contains("reward")) value = nlohmann::json(value["reward"]);
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    program_.refuse(
        "wrote " + printable(line.substr(0, 200)),
        "a line must be a finite number, {\"reward\": number}, or null for a completion that has no reward; "
        "write messages to stderr");
  }

  Duration time_limit_;
  LineProgram program_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_command_reward(const std::string& command, Duration time_limit) {
  return std::make_unique<CommandReward>(command, time_limit);
}

}  // namespace llmtrain
