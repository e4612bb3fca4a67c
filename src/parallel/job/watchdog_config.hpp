#pragma once
#include "core/deck/deck_value.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [watchdog]; see watchdog.hpp.
struct WatchdogConfig {
  bool enabled = true;
  Duration lost_after{2 * 60};       ///< without a heartbeat
  Duration stuck_after{15 * 60};     ///< without progress
  Duration io_stuck_after{30 * 60};  ///< without progress while reading or writing files
  int64_t replay_every_steps = 0;    ///< 0: no replays (train/run/replay.hpp)

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

}  // namespace llmtrain
