#include "tasks/opening_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "core/activity.hpp"
#include "core/machine.hpp"
#include "core/number_text.hpp"
#include "data/quality/chat_lint.hpp"
#include "device/host_memory.hpp"
#include "kernels/matmul.hpp"
#include "params/offload_file.hpp"
#include "system/peak.hpp"
#include "train/run/estimate.hpp"
#include "train/run/memory_limit.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/run/version.hpp"
#include "train/step_profile.hpp"

namespace llmtrain {

namespace {

/// Identifies the kind of processor, on which a run's bits depend.
void warn_of_mixed_devices(RunLog& log, Communicator& communicator) {
  const std::vector<std::string> all = communicator.gather_all(device_description());
  const auto other = std::ranges::find_if(all, [&](const std::string& device) { return device != all.front(); });
  if (other == all.end()) return;
  log.warn(
      fmt::format("rank {} runs on a different kind of device ({}), so that the results differ in their last bits from "
                  "a job on equal nodes",
                  other - all.begin(), *other));
}

/// Number of ranks that use this rank's device, this one included. Collective.
int64_t ranks_of_device(Communicator& communicator) {
  if (device_memory_is_host()) return communicator.node_size();
  const std::string mine = device_identity();
  return std::max<int64_t>(std::ranges::count(communicator.gather_all(mine), mine), 1);
}

/// Returns why training does not use the library's attention, even if there is one; null: it does.
const char* fallback_reason(const ModelConfig& model, DType compute) {
  if (compute == DType::f32) return "in fp32";
  return model.attention_dropout > 0 ? "with dropout" : nullptr;
}

constexpr size_t max_hosts = 8;  ///< maximum named in a message

}  // namespace

bool open_directory(std::optional<RunDirectory>& directory, const RunConfig& run, const DeckComparison& compare,
                    Communicator& communicator, const std::function<void()>& check) {
  const bool root = communicator.rank() == 0;
  int64_t finished = 0, renamed = 0;
  throw_on_all_ranks(communicator, [&] {
    if (!root) return;
    directory.emplace(run, compare);
    finished = directory->found() == RunDirectory::Found::finished ? 1 : 0;
    renamed = finished != 0 && !directory->renamed_files().empty() ? 1 : 0;
    if (renamed != 0 && check == nullptr) directory->refuse_renamed_files();
  });
  communicator.broadcast(&finished, sizeof(finished));
  communicator.broadcast(&renamed, sizeof(renamed));
  if (renamed != 0) check();
  if (finished != 0 && root) {
    std::fputs(
        fmt::format(
            "{}: this run is finished. Give run.name=... to start another, or run.overwrite=true to run it again\n",
            run.directory())
            .c_str(),
        stdout);
  }
  return finished != 0;
}

std::string watch_ranks(const WatchdogConfig& watchdog, const std::string& directory, Runtime& runtime) {
  if (!watchdog.enabled) return {};
  const auto seconds = [](Duration d) { return static_cast<double>(d.seconds); };
  return runtime.watch({directory + "/status",
                        {seconds(watchdog.lost_after), seconds(watchdog.stuck_after), seconds(watchdog.io_stuck_after)},
                        [] { return received_signal() == SIGTERM; }});
}

namespace {

/// Bytes that a rank needs, and its share of the device: those that decide, for all ranks alike.
struct RankMemory {
  int64_t needed, share;
};

RankMemory rank_memory(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const int64_t ranks = ranks_of_device(communicator);
  // On a GPU a profile is omitted if it does not fit.
  const bool profiles = device_memory_is_host() && limits.profiled;
  const int64_t profile = profiles ? limits_memory_bytes(*limits.profiled, ranks) : 0;
  // The largest plan, the largest process and the smallest share decide, for all ranks alike. Available memory already
  // excludes what this process uses. Only a rank's own share, not the process of another rank, limits its plan.
  std::array<int64_t, 3> memory = {plan.bytes() + matmul_workspace_bytes() + profile, device_context_bytes(ranks),
                                   -(device_memory().available / ranks - device_reserve_bytes())};
  communicator.maximum(memory);
  return {memory[0] + memory[1], memory[1] - memory[2]};
}

}  // namespace

void check_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const RankMemory memory = rank_memory(plan, limits, communicator);
  throw_on_all_ranks(communicator, [&] { check_memory(memory.needed, limits.limit, memory.share, limits.where); });
}

bool fits_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator) {
  const RankMemory memory = rank_memory(plan, limits, communicator);
  return memory.needed <= memory.share && (limits.limit == 0 || memory.needed <= limits.limit + between_starts);
}

void check_host_memory(int64_t bytes, Communicator& communicator) {
  if (device_memory_is_host()) return;
  std::array<int64_t, 2> memory = {bytes, -(host_memory("/").available / communicator.node_size())};
  communicator.maximum(memory);
  const int64_t most = memory[0], share = -memory[1];
  throw_on_all_ranks(communicator, [&] {
    if (most <= share) return;
    const auto text = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
    throw UserError(ExitCode::deck,
                    fmt::format("not enough memory: the offloaded state needs {} per rank in host memory, and a rank's "
                                "share of the node is {}. Use more ranks on more nodes, fewer ranks per node, or "
                                "parallel.offload_optimizer = nvme (--estimate prints the memory by category)",
                                text(most), text(share)));
  });
}

void reserve_disk(ParamStore& params, const std::string& folder, const std::string& where, Communicator& communicator) {
  // The ranks of a node share its disk: they report one error, with the sum.
  const std::string host = host_name(), own = fmt::format("{} {}", params.offload().disk_bytes(), host);
  int64_t of_node = 0;
  for (const std::string& other : communicator.gather_all(own)) {
    std::istringstream text(other);
    int64_t bytes = 0;
    std::string name;
    text >> bytes >> name;
    if (name == host) of_node += bytes;
  }
  const std::string place = where + (communicator.node_count() > 1 ? " on " + host : "");
  throw_on_all_ranks(communicator, [&] { check_offload_folder(folder, of_node, place); });
  throw_on_all_ranks(communicator, [&] {
    try {
      params.reserve_disk();
    } catch (const UserError& error) {  // failures that could not be checked before
      throw UserError(error.code(), place + ": " + error.what());
    }
  });
}

RunLogOptions log_options(const Config& config, const RunDirectory* directory, const Arena& plan,
                          Communicator& communicator) {
  RunLogOptions options;
  options.run.directory = directory != nullptr ? directory->path() : "";
  options.active = communicator.rank() == 0;
  options.every_steps = config.log.every_steps;
  options.every_first = config.log.every_first;
  options.sinks = config.log.sinks;
  options.run.name = config.run.name;
  options.run.settings = deck_settings(config);
  options.run.wandb = config.wandb;
  options.run.scales_loss = config.precision.compute == PrecisionConfig::Compute::fp16;
  options.run.ranks = communicator.size();
  options.memory_bytes = plan.bytes();
  if (!device_memory_is_host()) {
    options.peak_flops = peak_flops(device_description(), name_of(config.precision.compute)) * communicator.size() /
                         static_cast<double>(ranks_of_device(communicator));
  }
  options.memory_now = [ranks = ranks_of_device(communicator)] { return device_process_bytes(ranks); };
  return options;
}

std::string attention_backend(const std::string& library, Task task, const ModelConfig& model, DType compute) {
  return trains(task) && fallback_reason(model, compute) == nullptr ? library : std::string();
}

void agree_on_attention(const std::string& library, Communicator& communicator) {
  const std::vector<std::string> libraries = communicator.gather_all(library);
  const std::string difference = attention_difference(libraries, communicator.gather_all(host_name()));
  if (!difference.empty()) throw UserError(ExitCode::missing_input, difference);
}

void agree_on_products(const std::string& library, Communicator& communicator) {
  const std::vector<std::string> libraries = communicator.gather_all(library);
  const std::string difference = product_difference(libraries, communicator.gather_all(host_name()));
  if (!difference.empty()) throw UserError(ExitCode::missing_input, difference);
}

namespace {

/// Returns which hosts use which library, if libraries differ.
std::string hosts_of_libraries(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  std::vector<std::string> found;
  for (const std::string& library : libraries) {
    if (std::ranges::find(found, library) == found.end()) found.push_back(library);
  }
  if (found.size() < 2) return {};
  std::vector<std::string> parts;
  for (const std::string& library : found) {
    std::vector<std::string> names;
    for (size_t rank = 0; rank < libraries.size(); ++rank) {
      const bool is_new = libraries[rank] == library && std::ranges::find(names, hosts[rank]) == names.end();
      if (is_new) names.push_back(hosts[rank]);
    }
    const size_t shown = std::min(names.size(), max_hosts);
    const std::string more = shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "";
    names.resize(shown);
    parts.push_back(fmt::format("{} on {}{}", library.empty() ? "built-in" : library, fmt::join(names, ", "), more));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  const std::string found = hosts_of_libraries(libraries, hosts);
  if (found.empty()) return {};
  return fmt::format(
      "the ranks use different attention backends, whose results differ in bits: {}. Install the same cuDNN on all "
      "nodes, where LD_LIBRARY_PATH finds it, and use GPUs of one kind; or set LLMTRAIN_ATTENTION=own for all ranks",
      found);
}

std::string product_difference(std::span<const std::string> libraries, std::span<const std::string> hosts) {
  const std::string found = hosts_of_libraries(libraries, hosts);
  if (found.empty()) return {};
  return fmt::format(
      "the ranks use different libraries of matrix products, whose results differ in bits: {}. Install the same CUDA "
      "toolkit on all nodes, where LD_LIBRARY_PATH finds its libcublasLt",
      found);
}

std::string attention_text(const std::string& library, Task task, const ModelConfig& model, DType compute) {
  if (library.empty() || !trains(task)) return {};
  if (const char* why = fallback_reason(model, compute))
    return fmt::format("built-in attention: that of {} is not used {}", library, why);
  return "attention by " + library;
}

void print_machine(RunLog& log, const std::string& attention, Runtime& runtime) {
  const Communicator& c = runtime.communicator();
  log.print(version_text().substr(0, version_text().find('\n')));
  const std::string products = product_library();
  log.print(fmt::format("device     {}{}{}{}{}", device_description(), products.empty() ? "" : ", products by ",
                        products, attention.empty() ? "" : ", ", attention));
  const std::string why = runtime.cores_lost() ? "" : fmt::format(" ({})", runtime.thread_note());
  log.print(fmt::format("ranks      {} x {} thread{} on {} node{}{}", c.size(), runtime.threads(),
                        runtime.threads() == 1 ? "" : "s", c.node_count(), c.node_count() == 1 ? "" : "s", why));
}

void print_model(RunLog& log, const ModelConfig& model, const PrecisionConfig& precision, int64_t parameters,
                 std::optional<int64_t> trained) {
  log.print(fmt::format("model      {}: {} layers, width {}, {} heads, vocabulary {}; {} parameters, {}{}",
                        name_of(model.family), model.n_layers, model.d_model, model.n_heads,
                        count_text(model.vocab_size), count_text(parameters),
                        trained ? fmt::format("{} of them trained ({:.3g} %), ", count_text(*trained),
                                              100 * static_cast<double>(*trained) / static_cast<double>(parameters))
                                : std::string(),
                        name_of(precision.compute)));
}

void print_quantization(RunLog& log, const QuantizationConfig& bits) {
  if (!bits.active()) return;
  const std::string blocks = fmt::format("{}, blocks of {}, scales in {} bits", name_of(bits.type), bits.block_size,
                                         bits.double_quantization ? 8 : 32);
  log.print(fmt::format("quantized  frozen linear layers in {}", bits.bits == 8 ? "int8, scales of rows" : blocks));
}

void print_memory(RunLog& log, const Arena& plan, Communicator& communicator) {
  const auto text = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  const int64_t ranks = ranks_of_device(communicator);
  const int64_t context = device_context_bytes(ranks);
  std::array<int64_t, 3> memory = {plan.bytes(), -plan.bytes(), matmul_workspace_bytes() + context};
  communicator.maximum(memory);
  // Counts the current memory of the processes, as check_plan() does.
  const int64_t available = device_memory().available + ranks * (context - device_reserve_bytes());
  const int64_t bytes = memory[0] + memory[2];
  const std::string_view most = memory[0] == -memory[1] ? "" : " at most";  // if plans differ
  log.print(fmt::format("memory     {} per rank{}, {} on this {} of {} available", text(bytes), most,
                        text(bytes * ranks), device_memory_is_host() ? "node" : "GPU", text(available)));
}

void print_rows(RunLog& log, const Dataset& data) {
  std::vector<std::string> parts;
  const auto& used = data.train != nullptr ? data.train : data.validation;
  if (std::string rows = describe_rows(*used); !rows.empty()) parts.push_back(std::move(rows));
  if (data.short_documents > 0) {
    parts.push_back(
        fmt::format("{} documents shorter than data.min_length left out", count_text(data.short_documents)));
  }
  if (!parts.empty()) log.print(fmt::format("           {}", fmt::join(parts, ", ")));
}

void warn_of_rows(RunLog& log, const Dataset& data) {
  const RowCounts& rows = data.train->info().rows;
  for (const std::string& warning : data.warnings) log.warn(warning);
  if (rows.used > 0 && rows.used < few_rows) {
    log.warn(fmt::format("{} rows are few: a model learns them by heart", count_text(rows.used)));
  }
  if (10 * rows.duplicates > rows.used) {
    log.warn(fmt::format("{} of {} rows repeat an earlier one: remove them", count_text(rows.duplicates),
                         count_text(rows.used)));
  }
  if (10 * rows.untrained > rows.used) {
    log.warn(fmt::format("{} rows have no token to train on and are left out: check chat.train_on and the template",
                         count_text(rows.untrained)));
  }
  if (10 * (rows.equal + rows.empty) > rows.used) {
    log.warn(fmt::format("{} rows have equal or empty answers and are left out: check data.columns and the file",
                         count_text(rows.equal + rows.empty)));
  }
  if (2 * rows.without_stop > rows.used) {
    log.warn(fmt::format(
        "{} of {} rows train no stop token at their end, so that the model does not learn when to stop: use a template "
        "that writes the tokenizer's stop token, or set data.eos_token (llmtool validate names such templates)",
        count_text(rows.without_stop), count_text(rows.used)));
  }
}

void print_left_out(RunLog& log, const SampleCounts& counts) {
  std::vector<std::string> parts;
  if (counts.too_long > 0)
    parts.push_back(fmt::format("{} documents longer than a sample", count_text(counts.too_long)));
  const bool pairs = counts.group > 1;
  const std::string_view of_them = pairs ? "pairs" : "of them";
  if (counts.shorter_prompts > 0) {
    parts.insert(parts.begin(), fmt::format("{} prompts longer than the limit", count_text(counts.shorter_prompts)));
  }
  if (counts.dropped > 0) parts.push_back(fmt::format("{} {} dropped", count_text(counts.dropped), of_them));
  if (counts.lost_targets > 0) {
    parts.push_back(
        fmt::format("{} {} left out without a token to train on", count_text(counts.lost_targets), of_them));
  }
  if (counts.without_target > 0) {
    parts.push_back(fmt::format("{} {} of one token skipped", count_text(counts.without_target),
                                pairs ? "pairs with a document" : "documents"));
  }
  if (counts.unused_tokens > 0) parts.push_back(fmt::format("{} tokens skipped", count_text(counts.unused_tokens)));
  if (!parts.empty()) log.print(fmt::format("           {}", fmt::join(parts, ", ")));
  if (10 * counts.lost_targets > counts.samples) {
    log.warn(
        fmt::format("{} {} lose all tokens to train on when they are truncated to "
                    "batch.sequence_length, and are left out: use a longer one, or data.overflow = truncate_left",
                    count_text(counts.lost_targets), pairs ? "pairs" : "conversations"));
  }
}

void warn_of_missing_targets(RunLog& log, const DataStream& data, Communicator& communicator) {
  const SectionScope section(Section::data);
  const int64_t samples = data.samples(), rank = communicator.rank(), ranks = communicator.size();
  std::array<int64_t, 1> missing = {0};
  throw_on_all_ranks(communicator, [&] {
    missing[0] = data.without_target(samples / ranks * rank + std::min(rank, samples % ranks),
                                     samples / ranks * (rank + 1) + std::min(rank + 1, samples % ranks));
  });
  communicator.sum(missing);
  if (missing[0] == 0) return;
  log.warn(
      fmt::format("{} of {} samples have no target (every label is -100, or a document ends after every token): they "
                  "do not train the model, and a step with only such samples has no loss",
                  count_text(missing[0]), count_text(samples)));
}

void print_warnings(RunLog& log, std::span<const std::string> notes, Runtime& runtime) {
  for (const std::string& note : notes) log.warn(note);
  if (const std::string note = slow_products_note(); !note.empty()) log.warn(note);
  if (runtime.cores_lost()) log.warn(runtime.thread_note());
  if (const std::string note = runtime.communicator().note(); !note.empty()) log.warn(note);
  warn_of_mixed_devices(log, runtime.communicator());
}

}  // namespace llmtrain
