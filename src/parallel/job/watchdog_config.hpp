#pragma once
#include "core/deck/deck_value.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [watchdog]; see watchdog.hpp.
struct WatchdogConfig {
  bool enabled = true;
  Duration lost_after{2 * 60};       ///< without a sign of life
  Duration stuck_after{15 * 60};     ///< without progress
  Duration io_stuck_after{30 * 60};  ///< without progress where files are read or written

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

}  // namespace llmtrain
