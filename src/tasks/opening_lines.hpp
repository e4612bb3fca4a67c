#pragma once
// Lines at the beginning of a log, common to the tasks that have a model.

#include <optional>
#include <span>
#include <string>

#include "config/config.hpp"
#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "data/stream/data_stream.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "params/offload/offload_store.hpp"
#include "params/reduction/reduction_groups.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {

/// Prints the program, the device and the ranks. `attention`: see attention_text().
void print_machine(RunLog& log, const std::string& attention, Runtime& runtime);
/// Prints how matrices of a quantised base are stored; nothing if there are none.
void print_quantization(RunLog& log, const QuantizationConfig& bits);
/// trained: number of trained parameters, if that is not all.
void print_model(RunLog& log, const ModelConfig& model, const PrecisionConfig& precision, int64_t parameters,
                 std::optional<int64_t> trained = {});
/// Prints batch.sequence_length and its source, if the program chose it.
void print_length(RunLog& log, const Config& config);
/// Prints how a step is divided over ranks and passes.
void print_plan(RunLog& log, int64_t zero_stage, const BatchConfig& batch, const ReductionGroups& groups);
/// Prints the memory of the rank with the most. Collective.
void print_memory(RunLog& log, const Arena& plan, Communicator& communicator);
/// Prints the sizes of offloaded state. `where`: place of parallel.offload_path in the deck.
void print_offload(RunLog& log, const OffloadStore& offload, const std::string& path, const std::string& where);
/// Prints what became of rows of conversations, and how many short documents are left out.
void print_rows(RunLog& log, const Dataset& data);
/// Warns of rows of conversations that would not teach what is meant, if there are any.
void warn_of_rows(RunLog& log, const Dataset& data);
/// Prints how much of the data is not used.
void print_left_out(RunLog& log, const SampleCounts& counts);
/// Prints the sources of a mixture, used in a run of `steps` steps, and how documents become samples.
void print_sources(RunLog& log, const DataConfig& config, const BatchConfig& batch, const DataStream& stream,
                   int64_t steps);
/// Prints the difficulties of the samples, and from how many of them the first and the last step draw.
void print_difficulties(RunLog& log, const CurriculumConfig& curriculum, const BatchConfig& batch,
                        const DataStream& stream);
/// Prints the checkpoint that the run resumes from.
void print_resume(RunLog& log, const ResumePoint& from);
/// Warns how many samples have no target, if any. Collective: each rank counts its share.
void warn_of_missing_targets(RunLog& log, const DataStream& data, Communicator& communicator);
/// Prints the deck's notes, and warnings about the machines. Collective.
void print_warnings(RunLog& log, std::span<const std::string> notes, Runtime& runtime);

}  // namespace llmtrain
