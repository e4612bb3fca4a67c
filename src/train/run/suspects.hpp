#pragma once
// Replays leave in a run's folder: replay.json, with the newest checkpoint that can be trusted; the folder
// suspect_checkpoints, with later ones; excluded_nodes, the names of wrong hosts, a line each, which jobs/train.sbatch
// leaves out. One rank at a time calls these functions.

#include <cstdint>
#include <string>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

inline constexpr const char* replay_file_name = "replay.json";
inline constexpr const char* suspects_folder_name = "suspect_checkpoints";

struct ReplayState {
  int64_t trusted = -1;                  ///< step of the newest checkpoint before the last replay that agreed; -1: none
  int64_t best = -1;                     ///< step of the best checkpoint up to it; -1: none
  bool sets_aside = false;               ///< later checkpoints are being set aside
  std::vector<NodeNotice> notices = {};  ///< that the log of the next job repeats
  bool operator==(const ReplayState&) const = default;
};

/// Returns the state in a run's folder; the default one if there is none, or none that can be read.
ReplayState read_replay_state(const std::string& run);
/// UserError.
void write_replay_state(const std::string& run, const ReplayState& state);

/// If replay.json asks for it: moves later checkpoints than the trusted one. It goes on where a killed job ended.
/// UserError.
void set_suspects_aside(const std::string& run);
/// True for the path of a checkpoint that was set aside.
bool is_suspect(const std::string& checkpoint);

/// Adds hosts to excluded_nodes that are not in it. UserError.
void exclude_nodes(const std::string& run, const std::vector<std::string>& hosts);

}  // namespace llmtrain
