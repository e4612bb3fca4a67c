#include "metrics/wandb_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void WandbConfig::visit(DeckKeys& keys) {
  keys.section("wandb", "Name the offline run that the sink wandb of log.sinks writes.", Change::nothing, sample_tasks,
               true);
  keys.key("project", project, {.doc = "Project of the run."});
  keys.key("name", name, {.doc = "Name of the run; empty: run.name."});
  keys.key("entity", entity, {.doc = "User or team; empty: that of the account that syncs."});
  keys.key("tags", tags, {.doc = "Tags of the run."});
  keys.key("group", group, {.doc = "Group of runs, for example the seeds of one experiment."});
}

}  // namespace llmtrain
