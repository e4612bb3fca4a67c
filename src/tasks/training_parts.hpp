#pragma once
// The mapping of the deck to the parts of a training run, which do not know the deck.

#include <memory>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "params/param_store.hpp"
#include "tasks/tasks.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

/// The training data of the run as batches, with or without the order of its curriculum.
DataStream training_stream(const Config& config, const Dataset& data, const CurriculumConfig& curriculum);
/// Streams, objective and optimizer of the run. The deck must be resolved.
TrainingParts training_parts(const Config& config, const Dataset& data);

/// True if the policy's weights are gathered often between two updates, which memory for all of them would spare.
bool gathers_often(const Config& config, int64_t ranks);
/// The deck must be resolved: vocab_size and precision known. `keeps_gathered`: that of the policy's store.
std::unique_ptr<TrainingPlan> make_training_plan(const Config& config, const Dataset& data,
                                                 const RankPosition& position, bool keeps_gathered = false);

/// Intervals in epochs are in steps here. Facts about the start of the run are left to its task.
TrainingOptions training_options(const Config& config, const TrainingPlan& plan);

/// Reads the files that belong to the initial weights: those that checkpoints store, and those of an export, with the
/// chat of the run; and the tokens that end a sample. Collective.
void read_export_files(TrainingOptions& options, const Config& config, const Dataset& data, Communicator& communicator);

}  // namespace llmtrain
