#pragma once
// Selection of the checkpoint from which a run resumes.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "metrics/run_log.hpp"
#include "parallel/communicator.hpp"
#include "train/config/config.hpp"

namespace llmtrain {

/// Names of counters in a checkpoint that was saved before its step's evaluation or samples were complete.
inline constexpr const char* pending_evaluation = "owed_evaluation";
inline constexpr const char* pending_samples = "owed_samples";
inline bool is_pending(const RunState& state, const char* what) { return state.counters.contains(what); }

/// A verified checkpoint.
struct ResumePoint {
  std::string path;
  Manifest manifest;
  bool own = true;                 ///< in this run's folder; otherwise it starts a new run
  std::vector<std::string> notes;  ///< notes for the user: refused checkpoints, keys that changed
  std::set<int64_t> refused;       ///< steps of newer checkpoints that are damaged
  /// Keys of files whose names differ between the deck and the checkpoint, with a description; see compare_contents().
  std::map<std::string, std::string> named = {};
};

/// State of a run's log at a checkpoint.
LogState log_state(const Manifest& manifest);

/// Collective. Returns the checkpoint that [checkpoint] resume selects in the run directory `folder`, if any (with
/// run.overwrite, none of that folder). Sets the values that the configuration leaves to the device to those of the
/// checkpoint. UserError: cannot_create when the deck differs, missing_input when there is none and one is required,
/// bad_content when none is intact.
std::optional<ResumePoint> find_resume_point(Config& config, const std::string& folder, Communicator& communicator);

/// Contents of model.path, for a run that starts from an existing folder: its tensors by name, shape and some of their
/// bytes. UserError.
std::vector<NamedContent> content_of_model(const Config& config);

/// Compares the contents of the files that the deck names with those of the checkpoint: adds a note for moved files,
/// and keeps the old entry for those missing from `now`. UserError: cannot_create if the deck names different content,
/// bad_content if the content under the same name has changed.
void compare_contents(std::vector<NamedContent>& now, ResumePoint& from);

/// Adds a note if the checkpoint's attention backend was not `attention`, see attention_backend().
void warn_if_backend_changed(ResumePoint& point, const std::string& attention);

/// Truncates ledger.jsonl and metrics.jsonl in `folder` to the checkpoint, or starts a ledger from that of the
/// checkpoint's run. Returns notes for the user.
std::vector<std::string> cut_back(const std::string& folder, const ResumePoint& from);
/// Truncates metrics.jsonl alone: keeps lines up to the checkpoint; removes later lines, and an incomplete line.
void cut_metrics(const std::string& folder, const Manifest& manifest);

}  // namespace llmtrain
