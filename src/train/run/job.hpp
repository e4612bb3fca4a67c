#pragma once
// What the tasks with a model have in common: how they begin.

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

/// Opens the run directory on rank 0. True, and said on the console, when the run is finished; where the deck only
/// spells files otherwise than the finished run, check() says first whether they are the same. Collective.
bool open_directory(std::optional<RunDirectory>& directory, const Config& config, Communicator& communicator,
                    const std::function<void()>& check = nullptr);

/// Begins to watch over the ranks of this run; what there is to say of it goes to config.notes. Collective.
void watch_ranks(Config& config, Runtime& runtime);

/// The data of the deck, and the vocabulary settled by it. Collective.
Dataset load_data(Config& config, Communicator& communicator, const ProgressReport& report);

/// UserError(deck) on all ranks when the plan is too large for one of them. Collective.
void check_plan(const Arena& plan, const Config& config, Communicator& communicator);
/// Collective: UserError(deck) where a rank of a GPU wants more `bytes` of its node's memory than its share.
void check_host_memory(int64_t bytes, Communicator& communicator);

/// Of the files and the console: `directory` is null on ranks other than 0. Collective.
RunLogOptions log_options(const Config& config, const RunDirectory* directory, const Arena& plan,
                          Communicator& communicator);

/// Whose attention the run takes for whole sequences on a rank that finds this `library`; empty: all attention is ours.
std::string attention_backend(const std::string& library, const Config& config);
/// Collective: UserError(missing_input) on every rank where not all take the same, since they would compute other bits.
void agree_on_attention(const std::string& library, Communicator& communicator);
/// Which hosts take which library, and what to do, where not all take the same; else empty. Of each rank.
std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);

// Lines of the opening block.
void print_machine(RunLog& log, const Config& config, Runtime& runtime);
/// Whose attention training takes where there is a `library` beside ours, and why not the library's; empty where there
/// is none.
std::string attention_text(const std::string& library, const Config& config);
void print_model(RunLog& log, const Config& config, int64_t parameters);
/// Of the rank with the most. Collective.
void print_memory(RunLog& log, const Arena& plan, Communicator& communicator);
/// What of the data is not used.
void print_left_out(RunLog& log, const SampleCounts& counts);
/// Collective: what the user should know of the deck and the machines.
/// Tells how many samples have no target, if any. Collective: each rank counts its share.
void warn_of_missing_targets(RunLog& log, const DataStream& data, Communicator& communicator);
void print_warnings(RunLog& log, const Config& config, Runtime& runtime);

/// 1234567 -> "1,234,567"
std::string count_text(int64_t n);

}  // namespace llmtrain
