#include "train/run/suspects.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint_folder.hpp"
#include "core/error.hpp"
#include "core/files/whole_file.hpp"

namespace llmtrain {

ReplayState read_replay_state(const std::string& run) {
  std::ifstream file(run + "/" + replay_file_name);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ReplayState state;
  try {
    if (!json.is_object()) return state;
    state.trusted = json.value("trusted", state.trusted);
    state.best = json.value("best", state.best);
    state.sets_aside = json.value("sets_aside", state.sets_aside);
    for (const auto& entry : json.value("notices", nlohmann::json::array())) {
      NodeNotice& notice = state.notices.emplace_back();
      notice.host = entry.at("host").get<std::string>();
      notice.ranks = entry.at("ranks").get<std::vector<int>>();
      notice.replay = entry.at("wrong").get<bool>() ? NodeNotice::Replay::wrong : NodeNotice::Replay::doubtful;
    }
  } catch (const nlohmann::json::exception&) {  // nothing can be trusted
    return {};
  }
  return state;
}

void write_replay_state(const std::string& run, const ReplayState& state) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["trusted"] = state.trusted;
  json["best"] = state.best;
  if (state.sets_aside) json["sets_aside"] = true;
  for (const NodeNotice& notice : state.notices) {
    json["notices"].push_back(
        {{"host", notice.host}, {"ranks", notice.ranks}, {"wrong", notice.replay == NodeNotice::Replay::wrong}});
  }
  write_whole_file(run + "/" + replay_file_name, json.dump() + "\n");
}

void set_suspects_aside(const std::string& run) {
  ReplayState state = read_replay_state(run);
  if (!state.sets_aside) return;
  set_aside_after(run + "/checkpoints", state.trusted, state.best, run + "/" + suspects_folder_name);
  state.sets_aside = false;
  write_replay_state(run, state);
}

bool is_suspect(const std::string& checkpoint) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(checkpoint, error);
  return !error && path.parent_path().filename() == suspects_folder_name;
}

void exclude_nodes(const std::string& run, const std::vector<std::string>& hosts) {
  const std::string path = run + "/excluded_nodes";
  std::set<std::string> known;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) known.insert(line);
  std::ofstream file(path, std::ios::app);
  for (const std::string& host : hosts) {
    if (!known.contains(host)) file << host << '\n';
  }
  file.close();
  if (!file) throw UserError(ExitCode::io, fmt::format("{}: cannot be written", path));
}

}  // namespace llmtrain
