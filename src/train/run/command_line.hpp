#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

/// What llmtrain was asked to do: at most one of help, version, check and estimate; otherwise it trains.
struct CommandLine {
  std::string deck;                    ///< path
  std::vector<std::string> overrides;  ///< section.key=value, not looked into
  bool help = false;
  std::string help_topic;  ///< section, section.key or empty
  bool version = false;
  bool check = false;
  bool estimate = false;
  bool measure = false;
  bool json = false;
  int64_t ranks = 0;           ///< of the estimated job; 0 = this one's
  int64_t ranks_per_node = 0;  ///< 0 = this job's, or all on one node when `ranks` is given
};

/// Throws UserError(ExitCode::command_line), naming the nearest option where one is unknown.
CommandLine parse_command_line(int argc, const char* const* argv);

/// Usage and options, printed by --help before what help_text() says about the deck.
std::string usage_text();

}  // namespace llmtrain
