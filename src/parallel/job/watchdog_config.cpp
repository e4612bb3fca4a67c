#include "parallel/job/watchdog_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void WatchdogConfig::visit(DeckKeys& keys) {
  keys.section("watchdog",
               "End the job with exit code 76, and report where every rank is, when a rank is lost or stuck.",
               Change::nothing);
  keys.key("enabled", enabled,
           {.doc = "Detect lost and stuck ranks. false: a job with such a rank hangs until its time limit."});
  keys.key("lost_after", lost_after,
           {.doc = "Time without a heartbeat after which a rank is lost: killed, stopped, or on a failed node. It must "
                   "exceed the time in which the file system shows one node's small files to another."});
  keys.key("stuck_after", stuck_after,
           {.doc = "Time without progress after which a living rank is stuck (or 10 times the duration of its longest "
                   "work item); waiting for others does not count."});
  keys.key("io_stuck_after", io_stuck_after,
           {.doc = "The same time while a rank reads or writes files, and for ranks that all wait for each other."});
  keys.key(
      "replay_every_steps", replay_every_steps,
      {.unit = "steps",
       .range = at_least(0),
       .doc = "Interval of replays, of which the last step has one too: each rank computes a group of micro-batches "
              "of another rank once more, and their gradients are compared bit by bit: a rank that computes "
              "wrongly is named by a majority of three, and the run returns to a checkpoint before it. One rank "
              "compares itself with itself. Results do not depend on it. 0 = never.",
       .tasks = training_tasks});
}

void WatchdogConfig::resolve(DeckLoader& deck) const {
  if (!enabled) {
    for (const char* key : {"watchdog.lost_after", "watchdog.stuck_after", "watchdog.io_stuck_after"}) {
      deck.unused(key, "no effect with enabled = false");
    }
    return;
  }
  const auto positive = [&](std::string_view key, const Duration& value) {
    deck.check(value.seconds > 0, {key},
               "must be longer than 0 s: set watchdog.enabled = false to disable the watchdog");
  };
  positive("watchdog.lost_after", lost_after);
  positive("watchdog.stuck_after", stuck_after);
  positive("watchdog.io_stuck_after", io_stuck_after);
}

}  // namespace llmtrain
