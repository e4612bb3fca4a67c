#pragma once
// Common start-up of the tasks that have a model.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/config/config.hpp"
#include "train/run/run_directory.hpp"

namespace llmtrain {

/// Opens the run directory on rank 0. Returns true, after a message on the console, when the run is finished. If the
/// deck names files differently from the finished run, check() first verifies that they are the same. Collective.
bool open_directory(std::optional<RunDirectory>& directory, const Config& config, Communicator& communicator,
                    const std::function<void()>& check = nullptr);

/// Starts the watchdog for this run and adds its notes to config.notes. Collective.
void watch_ranks(Config& config, Runtime& runtime);

/// Returns [chat] and the folder where its templates are read: the tokenizer's, or else the model's.
ChatSource chat_source(const Config& config);

/// Loads the data of the deck and sets the vocabulary by it. Collective.
Dataset load_data(Config& config, Communicator& communicator, const ProgressReport& report);

/// Throws UserError(deck) on all ranks when the plan is too large for one of them. Collective.
void check_plan(const Arena& plan, const Config& config, Communicator& communicator);
/// Collective. Throws UserError(deck) if a rank of a GPU needs more `bytes` of its node's memory than its share.
void check_host_memory(int64_t bytes, Communicator& communicator);

/// Options for the log files and the console: `directory` is null on ranks other than 0. Collective.
RunLogOptions log_options(const Config& config, const RunDirectory* directory, const Arena& plan,
                          Communicator& communicator);

/// Attention backend of the run for whole sequences on a rank with this `library`; empty: the built-in attention only.
std::string attention_backend(const std::string& library, const Config& config);
/// Collective. Throws UserError(missing_input) on every rank if backends differ, since results would differ in bits.
void agree_on_attention(const std::string& library, Communicator& communicator);
/// Message that names the hosts of each library, and what to do, if libraries differ; else empty. One entry per rank.
std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);

// Lines of the log's header.
void print_machine(RunLog& log, const Config& config, Runtime& runtime);
/// Describes the attention backend of training if there is a `library` beside the built-in one, and why the library is
/// not used; empty if there is none.
std::string attention_text(const std::string& library, const Config& config);
/// trained: number of trained parameters, if that is not all.
void print_model(RunLog& log, const Config& config, int64_t parameters, std::optional<int64_t> trained = {});
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
void print_warnings(RunLog& log, const Config& config, Runtime& runtime);

/// 1234567 -> "1,234,567"
std::string count_text(int64_t n);

}  // namespace llmtrain
