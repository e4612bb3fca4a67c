#include "train/run/dashboard_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/child_process.hpp"
#include "core/error.hpp"

namespace llmtrain {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto patience_at_start = 5s;
constexpr auto patience_at_end = 1s, patience_after_kill = 2s;  // a file system that hangs keeps even a killed process

/// llmtool beside this program.
std::string tool_path() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "llmtool" : (own.parent_path() / "llmtool").string();
}

/// Two lines, which are written at once; "" if the child ends or says nothing in time.
std::string read_answer(int pipe) {
  const auto deadline = Clock::now() + patience_at_start;
  std::string text;
  while (text.empty() || text.back() != '\n') {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd event{pipe, POLLIN, 0};
    const int ready = left > 0 ? ::poll(&event, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return {};
    std::array<char, 4096> buffer;
    const ssize_t n = ::read(pipe, buffer.data(), buffer.size());
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return {};
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
  text.pop_back();
  return text;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it does not answer" : last;
}

}  // namespace

DashboardProcess::DashboardProcess(const DashboardConfig& config, const std::string& run_folder) {
  try {
    start(config, run_folder);
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
  if (text_.empty()) end();
}

DashboardProcess::~DashboardProcess() { end(); }

void DashboardProcess::start(const DashboardConfig& config, const std::string& run_folder) {
  const std::string log = run_folder + "/dashboard.log";
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor messages(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!nothing.open() || !messages.open()) throw Error(fmt::format("{}: {}", log, std::strerror(errno)));
  Descriptor answer, its_output;
  open_pipe(answer, its_output);
  std::vector<std::string> words = {tool_path(),
                                    "serve",
                                    run_folder,
                                    "--port",
                                    std::to_string(config.port),
                                    "--address",
                                    config.address,
                                    "--child-of",
                                    std::to_string(::getpid())};
  const int error =
      SpawnSettings(nothing.number(), its_output.number(), messages.number(), SpawnSettings::Isolation::session)
          .spawn(process_, words);
  if (error != 0) {
    process_ = -1;
    throw Error(fmt::format("{}: {}", words.front(), std::strerror(error)));
  }
  its_output.close();
  text_ = read_answer(answer.number());
  if (text_.empty()) problem_ = last_line(log);
}

bool DashboardProcess::has_ended() {
  if (process_ < 0 || ::waitpid(process_, nullptr, WNOHANG) == 0) return false;
  process_ = -1;
  return true;
}

void DashboardProcess::end() {
  if (process_ < 0) return;
  ::kill(process_, SIGTERM);
  const auto deadline = Clock::now() + patience_at_end;
  while (::waitpid(process_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) ::kill(process_, SIGKILL);
    if (Clock::now() > deadline + patience_after_kill) break;
    std::this_thread::sleep_for(5ms);
  }
  process_ = -1;
}

}  // namespace llmtrain
