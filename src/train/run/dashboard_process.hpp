#pragma once
#include <sys/types.h>

#include <string>

#include "report/dashboard/dashboard_config.hpp"

namespace llmtrain {

/// The dashboard of a run: `llmtool serve`, the program beside this one, as a child that cannot disturb the run. It has
/// a session of its own, the lowest priority, and nothing of the job open; it ends with this object or with the
/// process.
class DashboardProcess {
 public:
  /// Waits for its address for a few seconds at most. Never throws for a child that fails: see problem().
  DashboardProcess(const DashboardConfig& config, const std::string& run_folder);
  ~DashboardProcess();
  DashboardProcess(const DashboardProcess&) = delete;
  DashboardProcess& operator=(const DashboardProcess&) = delete;

  /// Its printed lines: its address, and how to reach it from elsewhere; "" if there is a problem.
  const std::string& text() const { return text_; }
  const std::string& problem() const { return problem_; }
  /// True once, in the first call after it has ended by itself or by somebody else.
  bool has_ended();

 private:
  void start(const DashboardConfig& config, const std::string& run_folder);
  void end();

  pid_t process_ = -1;
  std::string text_, problem_;
};

}  // namespace llmtrain
