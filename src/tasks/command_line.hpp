#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

/// Parsed command line of llmtrain: at most one of help, version, check and estimate; otherwise it trains.
struct CommandLine {
  std::string deck;                    ///< path
  std::vector<std::string> overrides;  ///< section.key=value, not parsed
  bool help = false;
  std::string help_topic;  ///< section, section.key or empty
  bool version = false;
  bool check = false;
  bool estimate = false;
  bool measure = false;
  bool json = false;
  int64_t ranks = 0;           ///< of the estimated job; 0 = this one's
  std::string network = {};    ///< see parse_network()
  int64_t ranks_per_node = 0;  ///< 0 = the same as this job, or all on one node when `ranks` is given
};

/// Throws UserError(ExitCode::command_line) that names the nearest option if one is unknown.
CommandLine parse_command_line(int argc, const char* const* argv);

/// Usage and options; --help prints it before help_text() about the deck.
std::string usage_text();

}  // namespace llmtrain
