#pragma once
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace llmtrain {

/// Energy that a node uses, in joules: what Cray's counter of the node says (/sys/cray/pm_counters/energy), GPUs
/// included; elsewhere the sum of the processors' packages and their memory (/sys/class/powercap/intel-rapl:*, the same
/// on AMD's) and of the job's GPUs.
class EnergyMeter {
 public:
  /// `root`: another folder in tests.
  explicit EnergyMeter(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// Returns the joules since the first call; NaN where nothing counts, and for ever once a counter is missing or
  /// begins anew. `gpus`: counter of the job's GPUs in joules, 0 without GPUs; empty: they have none, and the sum is
  /// unknown. A counter of a package turns over after some minutes at full load: call this more often.
  double sample(const std::optional<double>& gpus);

 private:
  struct Counter {
    double joules = 0, range = 0;  ///< range: value at which it turns over; 0: never
  };
  std::map<std::string, Counter> read(const std::optional<double>& gpus) const;

  std::filesystem::path root_;
  std::map<std::string, Counter> last_;
  double joules_ = std::numeric_limits<double>::quiet_NaN();
  bool lost_ = false;  ///< a counter is missing, or has begun anew
};

}  // namespace llmtrain
