#include "train/checkpoint_config.hpp"

#include "core/deck.hpp"

namespace llmtrain {

void CheckpointConfig::visit(DeckKeys& keys) {
  keys.section("checkpoint", "What is saved, so that the same command goes on where the run was cut off.");
  keys.key("every_steps", every_steps, {.unit = "steps", .range = at_least(0), .doc = "A checkpoint; 0 = never."});
  keys.key("every_minutes", every_minutes,
           {.unit = "minutes", .range = at_least(0), .doc = "A checkpoint after so much time without one; 0 = never."});
  keys.key("at_end", at_end, {.doc = "A checkpoint when the run has come to its end."});
  keys.key("keep", keep,
           {.range = at_least(1),
            .doc = "The newest so many stay, never fewer than two, besides the best and the one resumed from."});
  keys.key("resume", resume,
           {.doc = "auto: go on from the run's newest checkpoint that is whole; required: and fail if there is none; "
                   "never: refuse a run that has begun; a checkpoint's path: a new run begins with its state."});
  keys.key("asynchronous", asynchronous, {.doc = "Written by a thread of its own while the training goes on."});
  keys.key("buffer", buffer,
           {.unit = "bytes",
            .range = between(1 << 20, 1e15),
            .doc = "Memory of a rank for the copy that is being written; what does not fit holds the next update back "
                   "until it is read."});
  keys.key("verify", verify, {.doc = "Read back from the disk and compared; false: from the cache in memory only."});
  keys.key(
      "signal_save", signal_save,
      {.doc = "SIGTERM, SIGINT, SIGUSR1, SIGUSR2 end the run with a checkpoint and exit code 75; false: at once."});
}

}  // namespace llmtrain
