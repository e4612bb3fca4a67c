#pragma once
// The runs that a dashboard shows, as server-sent events. Events say what has changed since a version, so that a
// watcher that was disconnected misses nothing and gets nothing twice.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "report/run_reader.hpp"

namespace llmtrain {

/// Used by one thread. A run has a number that it keeps; where all are taken, a new run gets that of a deleted one.
class RunBoard {
 public:
  static constexpr size_t max_runs = 256;

  /// Arguments of find_runs(); a folder that has no run yet is waited for. Throws UserError for one that is not a
  /// folder.
  explicit RunBoard(std::vector<std::string> arguments);

  /// Reads what the files of the `followed` runs have more, at every tenth call also those of the others, and looks for
  /// new runs at every second call. The state of files never throws.
  void refresh(const std::set<size_t>& followed);

  /// Grows with each change; from 1.
  uint64_t version() const { return version_; }
  size_t size() const { return runs_.size(); }

  /// Events for a watcher of these runs that has seen everything up to version `since` (0: nothing): `runs` (rows of
  /// the list that have changed), `series` (metrics of the followed runs), `detail` (log, samples and ranks of the
  /// first of them). "" if there is nothing new.
  std::string events(const std::vector<size_t>& followed, uint64_t since) const;

 private:
  /// Sizes of a series by version, ascending.
  using Growth = std::vector<std::pair<uint64_t, size_t>>;
  struct Run {
    explicit Run(const std::filesystem::path& folder) : reader(folder) {}
    RunReader reader;
    std::map<std::string, Growth> growth;
    size_t events = 0;      ///< of the reader, when it was looked at
    uint64_t reset_at = 0;  ///< version from which all values were sent anew: what came before is obsolete
    nlohmann::ordered_json row;
    uint64_t row_at = 0;
    std::string detail;  ///< JSON
    uint64_t detail_at = 0;
  };

  void add_new_runs();
  bool read(size_t number, bool followed);
  static bool is_deleted(const std::unique_ptr<Run>& run);
  static bool is_rewritten(const Run& run);
  static void append_series(const Run& run, size_t number, uint64_t since, std::string& out);

  std::vector<std::string> arguments_;
  std::vector<std::unique_ptr<Run>> runs_;
  std::set<std::string> known_;  ///< folders
  uint64_t version_ = 0;
  uint64_t calls_ = 0;
  bool has_warned_ = false;  ///< of runs that are left out
};

}  // namespace llmtrain
