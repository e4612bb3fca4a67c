#include "checkpoint/checkpoint_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void CheckpointConfig::visit(DeckKeys& keys) {
  keys.section("checkpoint", "Save the run, so that the same command resumes it where it stopped.", Change::nothing,
               training_tasks);
  keys.key("every_steps", every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "Interval of scheduled checkpoints; 0 = never."});
  keys.key("every_epochs", every_epochs,
           {.unit = "epochs",
            .range = between(0, 1e6),
            .doc = "Interval of scheduled checkpoints in passes over the training data, in place of every_steps; 0 = "
                   "off."});
  keys.key("every_minutes", every_minutes,
           {.unit = "minutes", .range = at_least(0), .doc = "Maximum time between checkpoints; 0 = no limit."});
  keys.key("at_end", at_end, {.doc = "Save a checkpoint at the end of the run."});
  keys.key("keep", keep,
           {.range = at_least(1),
            .doc = "Number of newest checkpoints to keep (at least two are kept), besides the best one and the one "
                   "resumed from."});
  keys.key("resume", resume,
           {.doc = "auto: resume from the run's newest intact checkpoint, if any; required: fail if there is none; "
                   "never: refuse a run that has checkpoints; path of a checkpoint: start a new run from its state."});
  keys.key("asynchronous", asynchronous, {.doc = "Write checkpoints on a separate thread while training continues."});
  keys.key(
      "buffer", buffer,
      {.unit = "bytes",
       .range = between(1 << 20, 1e15),
       .doc = "Memory of a rank for the copy of the state that is written. If the state is larger, the next update "
              "waits until the rest is copied. A run that saves only on request has no copy."});
  keys.key("verify", verify,
           {.doc = "Verify each checkpoint by reading it back from the disk; false: from the page cache only."});
  keys.key("signal_save", signal_save,
           {.doc = "On SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, save a checkpoint and end with exit code 75; false: end "
                   "at once."});
  keys.key("files", files,
           {.doc = "Number of files of the state: one per rank, or one per node, for file systems that are slow with "
                   "many files. auto: one per node from 64 ranks on. A run can resume from either with any number of "
                   "ranks."});
  keys.key(
      "best_metric", best_metric,
      {.doc = "Metric of the best evaluation: validation/loss or another loss or perplexity, of which the lowest is "
              "the best; or the highest validation/token_accuracy (fraction of tokens that the model ranks first), "
              "validation/TASK/acc of evaluation.tasks, validation/rougeL of evaluation.metrics, or metric of the "
              "objective. Early stopping uses it too."});
  keys.key("export", export_model,
           {.doc = "Write a Hugging Face folder to <run>/export at the end: with the last weights, or with the best by "
                   "best_metric. With best, a checkpoint follows every better evaluation."});
  keys.key("export_merged", export_merged,
           {.doc = "With run.finetuning = lora, whose adapters are written to <run>/adapter: write <run>/export too, "
                   "the model of model.path with the adapters merged into it, in the type of its files."});
  keys.key("export_dtype", export_dtype, {.doc = "Type of the exported weights; the trained weights are always fp32."});
  keys.key("export_file_size", export_file_size,
           {.unit = "bytes",
            .range = between(1 << 20, int64_t{1} << 50),
            .doc = "Maximum size of the weights in one file of an export."});
}

}  // namespace llmtrain
