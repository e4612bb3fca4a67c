#include "train/run/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include "core/activity.hpp"
#include "core/machine.hpp"
#include "core/number_text.hpp"
#include "data/quality/chat_lint.hpp"
#include "device/host_memory.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
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
const char* fallback_reason(const Config& config) {
  if (compute_dtype(config.precision) == DType::f32) return "in fp32";
  return config.model.attention_dropout > 0 ? "with dropout" : nullptr;
}

/// Tasks other than training do not use the library's attention.
bool may_take_attention(const Config& config) { return trains(config.run.task); }

constexpr size_t max_hosts = 8;  ///< maximum named in a message

}  // namespace

bool open_directory(std::optional<RunDirectory>& directory, const Config& config, Communicator& communicator,
                    const std::function<void()>& check) {
  const bool root = communicator.rank() == 0;
  int64_t finished = 0, respelled = 0;
  throw_on_all_ranks(communicator, [&] {
    if (!root) return;
    directory.emplace(config);
    finished = directory->found() == RunDirectory::Found::finished ? 1 : 0;
    respelled = finished != 0 && !directory->respelled().empty() ? 1 : 0;
    if (respelled != 0 && check == nullptr) directory->refuse_respelled();
  });
  communicator.broadcast(&finished, sizeof(finished));
  communicator.broadcast(&respelled, sizeof(respelled));
  if (respelled != 0) check();
  if (finished != 0 && root) {
    std::fputs(
        fmt::format(
            "{}: this run is finished. Give run.name=... to start another, or run.overwrite=true to run it again\n",
            RunDirectory::path_of(config))
            .c_str(),
        stdout);
  }
  return finished != 0;
}

void watch_ranks(Config& config, Runtime& runtime) {
  const WatchdogConfig& w = config.watchdog;
  if (!w.enabled) return;
  const auto seconds = [](Duration d) { return static_cast<double>(d.seconds); };
  const std::string note = runtime.watch({RunDirectory::path_of(config) + "/status",
                                          {seconds(w.lost_after), seconds(w.stuck_after), seconds(w.io_stuck_after)},
                                          [] { return received_signal() == SIGTERM; }});
  if (!note.empty()) config.notes.push_back(note);
}

ChatSource chat_source(const Config& config) {
  std::error_code ignored;
  for (const std::string& folder :
       {config.data.has_tokenizer_files() ? config.data.tokenizer_path() : "", config.model.path}) {
    if (!folder.empty() && std::filesystem::is_directory(folder, ignored)) return {config.chat, folder};
  }
  return {config.chat, ""};
}

Dataset load_data(Config& config, Communicator& communicator, const ProgressReport& report) {
  const SectionScope section(Section::data);
  Dataset data = open_dataset(config.data, config.batch, communicator, report, chat_source(config));
  if (config.model.vocab_size == 0) config.set_vocab_size(data.vocabulary_size);
  if (!config.model.path.empty() && data.tokenizer != nullptr && data.tokenizer->kind() == "char" &&
      !config.provenance.given("data.tokenizer")) {
    config.notes.push_back(
        fmt::format("{}: {} has no tokenizer, so that every character of the text would be a token (data.tokenizer = "
                    "char), whose ids the model does not know. Name the tokenizer that it was trained with",
                    config.provenance.where("data.tokenizer"), config.model.path));
  }
  if (!data.note.empty()) {
    config.notes.push_back(fmt::format("{}: {}", config.provenance.where("data.tokenizer"), data.note));
  }
  if (config.model.vocab_size < data.vocabulary_size) {
    throw_on_all_ranks(communicator, [&] {
      throw UserError(ExitCode::deck, fmt::format("{}: {}", config.provenance.where("model.vocab_size"),
                                                  too_few_rows(config.model.vocab_size, data.vocabulary_size)));
    });
  }
  return data;
}

void check_plan(const Arena& plan, const Config& config, Communicator& communicator) {
  const int64_t ranks = ranks_of_device(communicator);
  // On a GPU a profile is omitted if it does not fit.
  const bool profiles = device_memory_is_host() && config.log.profile > 0 && trains(config.run.task);
  const int64_t profile = profiles ? limits_memory_bytes(compute_dtype(config.precision), ranks) : 0;
  // The largest plan, the largest process and the smallest share decide, for all ranks alike. Available memory already
  // excludes what this process uses. Only a rank's own share, not the process of another rank, limits its plan.
  std::array<int64_t, 3> memory = {plan.bytes() + matmul_workspace_bytes() + profile, device_context_bytes(ranks),
                                   -(device_memory().available / ranks - device_reserve_bytes())};
  communicator.maximum(memory);
  const int64_t planned = memory[0], process = memory[1], share = -memory[2] + process;
  throw_on_all_ranks(communicator, [&] {
    check_memory(planned + process, config.memory.limit, share, config.provenance.where("memory.limit"));
  });
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

RunLogOptions log_options(const Config& config, const RunDirectory* directory, const Arena& plan,
                          Communicator& communicator) {
  RunLogOptions options;
  options.directory = directory != nullptr ? directory->path() : "";
  options.active = communicator.rank() == 0;
  options.every_steps = config.log.every_steps;
  options.sinks = config.log.sinks;
  options.scales_loss = config.precision.compute == PrecisionConfig::Compute::fp16;
  options.ranks = communicator.size();
  options.memory_bytes = plan.bytes();
  options.memory_now = [ranks = ranks_of_device(communicator)] { return device_process_bytes(ranks); };
  return options;
}

std::string attention_backend(const std::string& library, const Config& config) {
  return may_take_attention(config) && fallback_reason(config) == nullptr ? library : std::string();
}

void agree_on_attention(const std::string& library, Communicator& communicator) {
  const std::vector<std::string> libraries = communicator.gather_all(library);
  const std::string difference = attention_difference(libraries, communicator.gather_all(host_name()));
  if (!difference.empty()) throw UserError(ExitCode::missing_input, difference);
}

std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts) {
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
  return fmt::format(
      "the ranks use different attention backends, whose results differ in bits: {}. Install the same cuDNN on all "
      "nodes, where LD_LIBRARY_PATH finds it, and use GPUs of one kind; or set LLMTRAIN_ATTENTION=own for all ranks",
      fmt::join(parts, "; "));
}

std::string attention_text(const std::string& library, const Config& config) {
  if (library.empty() || !may_take_attention(config)) return {};
  if (const char* why = fallback_reason(config))
    return fmt::format("built-in attention: that of {} is not used {}", library, why);
  return "attention by " + library;
}

void print_machine(RunLog& log, const Config& config, Runtime& runtime) {
  const Communicator& c = runtime.communicator();
  log.print(version_text().substr(0, version_text().find('\n')));
  const std::string attention = attention_text(attention_library(), config);
  log.print(fmt::format("device     {}{}{}", device_description(), attention.empty() ? "" : ", ", attention));
  const std::string why = runtime.cores_lost() ? "" : fmt::format(" ({})", runtime.thread_note());
  log.print(fmt::format("ranks      {} x {} thread{} on {} node{}{}", c.size(), runtime.threads(),
                        runtime.threads() == 1 ? "" : "s", c.node_count(), c.node_count() == 1 ? "" : "s", why));
}

void print_model(RunLog& log, const Config& config, int64_t parameters, std::optional<int64_t> trained) {
  log.print(fmt::format("model      {}: {} layers, width {}, {} heads, vocabulary {}; {} parameters, {}{}",
                        name_of(config.model.family), config.model.n_layers, config.model.d_model, config.model.n_heads,
                        count_text(config.model.vocab_size), count_text(parameters),
                        trained ? fmt::format("{} of them trained ({:.3g} %), ", count_text(*trained),
                                              100 * static_cast<double>(*trained) / static_cast<double>(parameters))
                                : std::string(),
                        name_of(config.precision.compute)));
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
  if (std::string rows = describe_rows(used->info().rows); !rows.empty()) parts.push_back(std::move(rows));
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
  if (counts.dropped > 0) parts.push_back(fmt::format("{} of them dropped", count_text(counts.dropped)));
  if (counts.lost_targets > 0) {
    parts.push_back(fmt::format("{} of them left out without a token to train on", count_text(counts.lost_targets)));
  }
  if (counts.without_target > 0) {
    parts.push_back(fmt::format("{} documents of one token skipped", count_text(counts.without_target)));
  }
  if (counts.unused_tokens > 0) parts.push_back(fmt::format("{} tokens skipped", count_text(counts.unused_tokens)));
  if (!parts.empty()) log.print(fmt::format("           {}", fmt::join(parts, ", ")));
  if (10 * counts.lost_targets > counts.samples) {
    log.warn(
        fmt::format("{} conversations lose all tokens to train on when they are truncated to "
                    "batch.sequence_length, and are left out: use a longer one, or data.overflow = truncate_left",
                    count_text(counts.lost_targets)));
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

void print_warnings(RunLog& log, const Config& config, Runtime& runtime) {
  for (const std::string& note : config.notes) log.warn(note);
  if (const std::string note = slow_products_note(); !note.empty()) log.warn(note);
  if (runtime.cores_lost()) log.warn(runtime.thread_note());
  if (const std::string note = runtime.communicator().note(); !note.empty()) log.warn(note);
  warn_of_mixed_devices(log, runtime.communicator());
}

std::string count_text(int64_t n) {
  std::string digits = std::to_string(n), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace llmtrain
