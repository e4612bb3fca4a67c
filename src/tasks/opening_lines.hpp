#pragma once
// Lines at the beginning of a log, common to the tasks that have a model.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "metrics/run_log.hpp"
#include "models/model_config.hpp"
#include "optim/precision_config.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

/// Prints the program, the device and the ranks. `attention`: see attention_text().
void print_machine(RunLog& log, const std::string& attention, Runtime& runtime);
/// Prints how matrices of a quantised base are stored; nothing if there are none.
void print_quantization(RunLog& log, const QuantizationConfig& bits);
/// trained: number of trained parameters, if that is not all.
void print_model(RunLog& log, const ModelConfig& model, const PrecisionConfig& precision, int64_t parameters,
                 std::optional<int64_t> trained = {});
/// Prints the memory of the rank with the most. Collective.
void print_memory(RunLog& log, const Arena& plan, Communicator& communicator);
/// Prints what became of rows of conversations, and how many short documents are left out.
void print_rows(RunLog& log, const Dataset& data);
/// Warns of rows of conversations that would not teach what is meant, if there are any.
void warn_of_rows(RunLog& log, const Dataset& data);
/// Prints how much of the data is not used.
void print_left_out(RunLog& log, const SampleCounts& counts);
/// Warns how many samples have no target, if any. Collective: each rank counts its share.
void warn_of_missing_targets(RunLog& log, const DataStream& data, Communicator& communicator);
/// Prints the deck's notes, and warnings about the machines. Collective.
void print_warnings(RunLog& log, std::span<const std::string> notes, Runtime& runtime);

}  // namespace llmtrain
