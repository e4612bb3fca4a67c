#pragma once
// Where a run goes on.

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

/// Counters of a checkpoint that was saved inside of what its step ends with: this is still to be done.
inline constexpr const char* owed_evaluation = "owed_evaluation";
inline constexpr const char* owed_samples = "owed_samples";
inline bool owes(const RunState& state, const char* what) { return state.counters.contains(what); }

/// A verified checkpoint.
struct ResumePoint {
  std::string path;
  Manifest manifest;
  bool own = true;                 ///< in this run's folder; otherwise the start of a new run
  std::vector<std::string> notes;  ///< what the user should know: refused checkpoints, keys that changed
  std::set<int64_t> refused;       ///< steps of newer ones that are damaged
  /// Keys of files that the deck spells otherwise than the checkpoint's, and how; see compare_contents().
  std::map<std::string, std::string> named = {};
};

/// What a run's log goes on from.
LogState log_state(const Manifest& manifest);

/// Collective: the checkpoint that [checkpoint] resume chooses in the run directory `folder`, if any (with
/// run.overwrite none of that folder). Settles what the configuration left to the device as the checkpoint has it.
/// UserError: cannot_create when the deck is another's, missing_input when there is none and one is required,
/// bad_content when none is whole.
std::optional<ResumePoint> find_resume_point(Config& config, const std::string& folder, Communicator& communicator);

/// What model.path holds, of a run that begins with a folder which is there: its tensors by name, shape and some of
/// their bytes. UserError.
std::vector<NamedContent> content_of_model(const Config& config);

/// Holds what the deck names now against what the checkpoint was made with, by content: what moved is noted, what is
/// missing from `now` is as it was. UserError: cannot_create where the deck names something else, bad_content where
/// something else lies in the same place.
void compare_contents(std::vector<NamedContent>& now, ResumePoint& from);

/// Adds a note where attention was not computed by `attention`, as attention_backend() has it.
void warn_if_backend_changed(ResumePoint& point, const std::string& attention);

/// Cuts ledger.jsonl and metrics.jsonl in `folder` back to the checkpoint, or begins a ledger from that of the other
/// run that it is of. Gives notes for the user.
std::vector<std::string> cut_back(const std::string& folder, const ResumePoint& from);
/// The same of metrics.jsonl alone: lines up to the checkpoint stay; lines behind it, and half of a line, go.
void cut_metrics(const std::string& folder, const Manifest& manifest);

}  // namespace llmtrain
