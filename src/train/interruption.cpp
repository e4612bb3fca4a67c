#include "train/interruption.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "core/stop_request.hpp"

namespace llmtrain {
namespace {

enum Code : int64_t { none, signal_base = 1, stop_file = 1000, time_is_up = 1001 };
constexpr double look_seconds = 0.5;         // between two looks for files
constexpr double slurm_margin_seconds = 20;  // for the end of the job itself, and clocks that differ

extern "C" void note_signal(int number) { request_stop(number); }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Seconds that Slurm still grants; negative: unknown.
double seconds_of_slurm() {
  const auto left = [](const char* text) {
    const double end = text != nullptr ? std::atof(text) : 0;
    return end > 0 ? end - static_cast<double>(std::time(nullptr)) : -1;
  };
  if (const char* end = std::getenv("SLURM_JOB_END_TIME")) return left(end);
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr || std::string(job).find_first_not_of("0123456789_") != std::string::npos) return -1;
  FILE* pipe = popen(fmt::format("squeue -h -j {} -O EndTime 2>/dev/null", job).c_str(), "r");
  if (pipe == nullptr) return -1;
  std::array<char, 64> text{};
  const bool read = std::fgets(text.data(), text.size(), pipe) != nullptr;
  pclose(pipe);
  std::tm time{};
  if (!read || strptime(text.data(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return -1;  // "NONE": no limit
  time.tm_isdst = -1;
  return std::difftime(std::mktime(&time), std::time(nullptr));
}

}  // namespace

void note_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaction(number, &action, nullptr);
}

int noted_signal() { return requested_stop(); }

Interruption::Interruption(const Config& config, std::string folder, bool root)
    : folder_(std::move(folder)),
      root_(root),
      signals_(config.checkpoint.signal_save),
      every_seconds_(config.checkpoint.every_minutes * 60),
      start_(now()),
      last_save_(start_) {
  if (!root) return;
  if (config.run.time_limit > 0) {
    end_ = start_ + static_cast<double>(config.run.time_limit);
  } else if (config.run.time_limit == RunConfig::limit_of_job) {
    if (const double left = seconds_of_slurm(); left >= 0) end_ = start_ + left - slurm_margin_seconds;
  }
}

Interruption::Wish Interruption::wish(double needed) {
  Wish wish;
  if (signals_ && noted_signal() != 0) wish.stop = signal_base + noted_signal();
  if (!root_) return wish;
  const double time = now();
  if (time - last_look_ > look_seconds) {
    last_look_ = time;
    files_.stop = access((folder_ + "/STOP").c_str(), F_OK) == 0 ? stop_file : none;
    files_.save = access((folder_ + "/SAVE").c_str(), F_OK) == 0 ? 1 : 0;
  }
  wish.stop = std::max(wish.stop, files_.stop);
  wish.save = files_.save;
  if (every_seconds_ > 0 && time - last_save_ >= every_seconds_) wish.save = 1;
  if (end_ > 0 && time + needed > end_) wish.stop = time_is_up;
  return wish;
}

std::string Interruption::reason(int64_t stop) {
  if (stop == stop_file) return "the file STOP";
  if (stop == time_is_up) return "the time limit";
  switch (stop - signal_base) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "SIGUSR2";
  }
}

void Interruption::saved() {
  last_save_ = now();
  if (root_ && files_.save != 0) {
    ::unlink((folder_ + "/SAVE").c_str());
    files_.save = 0;
  }
}

void Interruption::stopped() const {
  if (root_) ::unlink((folder_ + "/STOP").c_str());
}

}  // namespace llmtrain
