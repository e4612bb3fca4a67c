#pragma once
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

namespace llmtrain {

/// Receives a line for the user; called on rank 0 if ranks share the work.
using ProgressReport = std::function<void(const std::string&)>;

/// Reports "what: 40 %", at most ten times, and not at all for short work.
inline std::function<void(double)> percent_report(ProgressReport report, std::string what) {
  return [report = std::move(report), what = std::move(what), shown = 0](double done) mutable {
    const int percent = static_cast<int>(100 * done);
    const bool at_once = shown == 0 && percent >= 100;
    if (at_once || percent < shown + 10 || !report) return;
    shown = percent / 10 * 10;
    report(fmt::format("{}: {} %", what, percent));
  };
}

}  // namespace llmtrain
