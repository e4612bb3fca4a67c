#pragma once
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/progress.hpp"

namespace llmtrain {

/// Receives a line for the user; called on rank 0 if ranks share the work.
using ProgressReport = std::function<void(const std::string&)>;

/// Shows the work on the display, while the function or a copy exists. Without a display it reports "what: 40 %", at
/// most ten times, and not at all for short work.
inline std::function<void(double)> percent_report(ProgressReport report, std::string what) {
  const auto progress = std::make_shared<Progress>(what);
  return [report = std::move(report), what = std::move(what), progress, shown = 0](double done) mutable {
    progress->set_fraction(done);
    if (Progress::is_displayed()) return;
    const int percent = static_cast<int>(100 * done);
    const bool at_once = shown == 0 && percent >= 100;
    if (at_once || percent < shown + 10 || !report) return;
    shown = percent / 10 * 10;
    report(fmt::format("{}: {} %", what, percent));
  };
}

}  // namespace llmtrain
