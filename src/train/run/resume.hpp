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
#include "train/config/load_config.hpp"

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

  /// Name of the recorded deck, for messages.
  std::string deck_name() const { return path + "/manifest.json: deck"; }
};

/// State of a run's log at a checkpoint.
LogState log_state(const Manifest& manifest);

/// Collective. Returns the checkpoint that checkpoint.resume selects, if any (with run.overwrite, none in the run
/// directory). UserError: cannot_create when the deck differs, missing_input when there is none and one is required,
/// bad_content when none is intact.
std::optional<ResumePoint> find_resume_point(const RunConfig& run, const CheckpointConfig& checkpoint,
                                             const Provenance& provenance, const DeckComparison& compare,
                                             Communicator& communicator);

/// Content of a model's folder: its tensors by name, shape and some of their bytes. UserError.
NamedContent content_of_model(const std::string& path);

/// Compares the contents of the files that the deck names with those of the checkpoint: adds a note for moved files,
/// and keeps the old entry for those missing from `now`. UserError: cannot_create if the deck names different content,
/// bad_content if the content under the same name has changed.
void compare_contents(std::vector<NamedContent>& now, ResumePoint& from);

/// Adds a note if the checkpoint's attention backend was not `attention`, see attention_backend().
void warn_if_backend_changed(ResumePoint& point, const std::string& attention);
/// Adds a note if the checkpoint names another library of matrix products, see product_library().
void warn_if_products_changed(ResumePoint& point, const std::string& products);

/// Truncates ledger.jsonl and metrics.jsonl in `folder` to the checkpoint, or starts a ledger from that of the
/// checkpoint's run. Returns notes for the user.
std::vector<std::string> cut_back(const std::string& folder, const ResumePoint& from);
/// Truncates metrics.jsonl alone: keeps lines up to the checkpoint; removes later lines, and an incomplete line.
/// Returns a note if that fails: the run resumes all the same.
[[nodiscard]] std::string cut_metrics(const std::string& folder, const Manifest& manifest);

}  // namespace llmtrain
