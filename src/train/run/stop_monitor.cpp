#include "train/run/stop_monitor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "core/clock.hpp"
#include "core/stop_request.hpp"
#include "methods/method.hpp"

namespace llmtrain {
namespace {

constexpr double look_seconds = 0.5;         // time between two checks for files
constexpr double slurm_margin_seconds = 20;  // for the end of the job itself, and for clocks that differ

constexpr std::array signals = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

extern "C" void note_signal(int number) { request_stop(number); }

/// Seconds until Slurm's limit; negative: unknown.
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

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t all;
  sigemptyset(&all);
  for (const int number : signals) {
    sigaction(number, &action, nullptr);
    sigaddset(&all, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
}

void restore_default_signals() {
  for (const int number : signals) std::signal(number, SIG_DFL);
  if (received_signal() != 0) std::raise(received_signal());
}

int received_signal() { return requested_stop(); }

StopMonitor::StopMonitor(const RunConfig& run, const CheckpointConfig& checkpoint, bool root)
    : folder_(run.directory()),
      root_(root),
      every_seconds_(checkpoint.every_minutes * 60),
      start_(now()),
      last_save_(start_) {
  set_stop_source([this] { return static_cast<int>(requested(0).stop); });
  if (!root || !task_rules(run.task).trains()) return;  // other tasks have nothing to save in time
  if (run.time_limit > 0) {
    end_ = start_ + static_cast<double>(run.time_limit);
  } else if (run.time_limit == RunConfig::limit_of_job) {
    if (const double left = seconds_of_slurm(); left >= 0) end_ = start_ + left - slurm_margin_seconds;
  }
}

StopMonitor::~StopMonitor() {
  set_stop_source({});
  if (files_.stop != 0) ::unlink((folder_ + "/STOP").c_str());
}

void StopMonitor::look_for_files() {
  const double time = now();
  if (time - last_look_ <= look_seconds) return;
  last_look_ = time;
  files_.stop = access((folder_ + "/STOP").c_str(), F_OK) == 0 ? stop_by_file : 0;
  files_.save = access((folder_ + "/SAVE").c_str(), F_OK) == 0 ? 1 : 0;
}

StopMonitor::Request StopMonitor::requested(double needed) {
  Request requested{requested_stop(), 0};
  if (!root_) return requested;
  look_for_files();
  requested.stop = std::max(requested.stop, files_.stop);
  requested.save = files_.save;
  const double time = now();
  if (every_seconds_ > 0 && time - last_save_ >= every_seconds_) requested.save = 1;
  // Half of the time is for steps, however long a save seems to take, so that every job makes some steps.
  if (end_ > 0 && time + std::min(needed, (end_ - start_) / 2) > end_) requested.stop = stop_by_time;
  return requested;
}

void StopMonitor::saved() {
  last_save_ = now();
  if (files_.save == 0) return;
  ::unlink((folder_ + "/SAVE").c_str());
  files_.save = 0;
}

}  // namespace llmtrain
