#include "parallel/job/watchdog_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void WatchdogConfig::visit(DeckKeys& keys) {
  keys.section("watchdog",
               "Ends the job with exit code 76, and says where every rank is, instead of waiting for ever for a rank "
               "that is lost or stuck.",
               Change::nothing);
  keys.key("enabled", enabled, {.doc = "false: a job whose rank is stopped or hangs stays until its time is up."});
  keys.key("lost_after", lost_after,
           {.doc = "A rank without a sign of life for so long is lost: killed, stopped, or its node gone. Longer than "
                   "the file system takes to show one node's small files to another."});
  keys.key("stuck_after", stuck_after,
           {.doc = "A rank that lives but gets nothing done for so long is stuck (or 10 times as long as its longest "
                   "piece of work took); waiting for others does not count."});
  keys.key("io_stuck_after", io_stuck_after,
           {.doc = "The same while it reads or writes files; also for ranks that all wait for each other."});
}

void WatchdogConfig::resolve(DeckLoader& deck) const {
  if (!enabled) {
    for (const char* key : {"watchdog.lost_after", "watchdog.stuck_after", "watchdog.io_stuck_after"}) {
      deck.unused(key, "no effect with enabled = false");
    }
    return;
  }
  const auto positive = [&](std::string_view key, const Duration& value) {
    deck.check(value.seconds > 0, {key}, "must be longer than 0 s; watchdog.enabled = false switches it off");
  };
  positive("watchdog.lost_after", lost_after);
  positive("watchdog.stuck_after", stuck_after);
  positive("watchdog.io_stuck_after", io_stuck_after);
}

}  // namespace llmtrain
