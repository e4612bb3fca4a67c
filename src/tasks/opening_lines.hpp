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
#include "models/model_config.hpp"
#include "optim/precision_config.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/job/watchdog_config.hpp"
#include "params/param_store.hpp"
#include "train/run/run_directory.hpp"

namespace llmtrain {

/// Opens the run directory on rank 0. Returns true, after a message on the console, when the run is finished. If the
/// deck names files differently from the finished run, check() first verifies that they are the same. Collective.
bool open_directory(std::optional<RunDirectory>& directory, const RunConfig& run, const DeckComparison& compare,
                    Communicator& communicator, const std::function<void()>& check = nullptr);

/// Starts the watchdog, whose files are in the run directory. Returns a note for the user, or "". Collective.
std::string watch_ranks(const WatchdogConfig& watchdog, const std::string& directory, Runtime& runtime);

/// Limits of a rank's memory beside those of its machine.
struct MemoryLimits {
  int64_t limit = 0;                   ///< memory.limit; 0: none
  std::string where;                   ///< place of that key in the deck
  std::optional<DType> profiled = {};  ///< set if the steps are profiled: the dtype of their products
};
/// Throws UserError(deck) on all ranks when the plan is too large for one of them. Collective.
void check_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator);
/// Returns true if check_plan() accepts the plan. Collective.
bool fits_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator);
/// Collective. Throws UserError(deck) if a rank of a GPU needs more `bytes` of its node's memory than its share.
void check_host_memory(int64_t bytes, Communicator& communicator);
/// Creates this rank's file in parallel.offload_path; without it the start of training does. `where`: place of that key
/// in the deck. Collective.
void reserve_disk(ParamStore& params, const std::string& folder, const std::string& where, Communicator& communicator);

/// Options for the log files and the console: `directory` is null on ranks other than 0. Collective.
RunLogOptions log_options(const Config& config, const RunDirectory* directory, const Arena& plan,
                          Communicator& communicator);

/// Attention backend of a task for whole sequences on a rank with this `library`; empty: the built-in attention only.
std::string attention_backend(const std::string& library, Task task, const ModelConfig& model, DType compute);
/// Collective. Throws UserError(missing_input) on every rank if backends differ, since results would differ in bits.
void agree_on_attention(const std::string& library, Communicator& communicator);
/// Does so for libraries of matrix products, see product_library().
void agree_on_products(const std::string& library, Communicator& communicator);
/// Message that names the hosts of each library, and what to do, if libraries differ; else empty. One entry per rank.
std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);
std::string product_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);

// Lines of the log's header.
/// attention: see attention_text().
void print_machine(RunLog& log, const std::string& attention, Runtime& runtime);
/// Describes the attention backend of training if there is a `library` beside the built-in one, and why the library is
/// not used; empty if there is none.
std::string attention_text(const std::string& library, Task task, const ModelConfig& model, DType compute);
/// trained: number of trained parameters, if that is not all.
/// Prints how matrices of a quantised base are stored; nothing if there are none.
void print_quantization(RunLog& log, const QuantizationConfig& bits);
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
