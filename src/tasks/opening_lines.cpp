#include "tasks/opening_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/activity.hpp"
#include "core/number_text.hpp"
#include "data/files/data_sources.hpp"
#include "data/quality/chat_lint.hpp"
#include "data/stream/difficulty_order.hpp"
#include "kernels/matmul.hpp"
#include "params/offload/offload_file.hpp"
#include "tasks/estimate/memory_limit.hpp"
#include "train/config/sequence_length.hpp"
#include "train/run/version.hpp"

namespace llmtrain {

namespace {

/// Identifies the kind of processor, on which a run's bits depend.
void warn_of_mixed_devices(RunLog& log, Communicator& communicator) {
  const std::vector<std::string> all = communicator.gather(device_description());
  const auto other = std::ranges::find_if(all, [&](const std::string& device) { return device != all.front(); });
  if (other == all.end()) return;
  log.warn(
      fmt::format("rank {} runs on a different kind of device ({}), so that the results differ in their last bits from "
                  "a job on equal nodes",
                  other - all.begin(), *other));
}

}  // namespace

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

void print_length(RunLog& log, const Config& config) {
  if (!chooses_sequence_length(config)) return;
  log.print(fmt::format("length     {} tokens ({})", config.batch.sequence_length,
                        config.provenance.at("batch.sequence_length").note));
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
    log.warn(fmt::format("{} rows are few: a model memorises them", count_text(rows.used)));
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

void print_sources(RunLog& log, const DataConfig& config, const BatchConfig& batch, const DataStream& stream,
                   int64_t steps) {
  const std::vector<SourceShare> sources = stream.sources();
  const double taken = static_cast<double>(steps) * static_cast<double>(batch.global);
  for (size_t s = 0; s < sources.size() && sources.size() > 1; ++s) {
    log.print(fmt::format("source     {}: {:.4g} % of the samples; it has {}, used for {:.2f} epochs",
                          split_weight(config.train[s]).pattern, 100 * sources[s].share, count_text(sources[s].samples),
                          taken * sources[s].share / static_cast<double>(sources[s].samples)));
  }
  const SampleCounts& counts = stream.counts();
  if (config.packing != DataConfig::Packing::wrap) {
    const double room = static_cast<double>(counts.samples) * static_cast<double>(batch.sequence_length);
    log.print(fmt::format("packing    {}: samples are {:.1f} % full", name_of(config.packing),
                          100 * static_cast<double>(counts.inputs) / room));
  }
  print_left_out(log, counts);
}

void print_difficulties(RunLog& log, const CurriculumConfig& curriculum, const BatchConfig& batch,
                        const DataStream& stream) {
  const DifficultyOrder* order = stream.difficulty_order();
  for (size_t s = 0; order != nullptr && s < order->sources(); ++s) {
    const std::vector<double>& all = order->difficulties(s);
    const auto pool = [&](int64_t step) { return order->pool(s, curriculum.value(step), curriculum.scale); };
    const int64_t first = pool(1);
    log.print(fmt::format(
        "curriculum {}{} from {:.4g} over {:.4g} (median) to {:.4g}; the first step draws from {} samples, "
        "the last one from {}",
        order->sources() > 1 ? fmt::format("source {}: ", s + 1) : "", name_of(curriculum.difficulty.kind), all.front(),
        all[all.size() / 2], all.back(), count_text(first), count_text(pool(std::numeric_limits<int64_t>::max()))));
    if (first < batch.global && order->sources() == 1) {
      log.warn(
          fmt::format("the first step draws {} samples from {}, so that it has some of them twice: begin with a "
                      "larger curriculum.start",
                      batch.global, first));
    }
  }
}

void print_resume(RunLog& log, const ResumePoint& from) {
  log.print(fmt::format("{}    {}, step {}, written by {} rank{}", from.own ? "resumed" : "started", from.path,
                        from.manifest.step, from.manifest.shards.size(), from.manifest.shards.size() == 1 ? "" : "s"));
  for (const std::string& note : from.notes) log.warn(note);
}

void print_offload(RunLog& log, const OffloadStore& offload, const std::string& path, const std::string& where) {
  const int64_t bytes = offload.disk_bytes(), pinned = offload.pinned_bytes();
  if (pinned != 0) {
    log.print(fmt::format("offload    {} per rank in host memory", bytes_text(static_cast<double>(pinned))));
  }
  if (bytes == 0) return;
  log.print(fmt::format("offload    {} per rank in {}", bytes_text(static_cast<double>(bytes)), path));
  if (is_in_memory(path)) {
    log.warn(fmt::format("{}: {} is in memory (tmpfs), so that offloading saves nothing: give a folder on a disk",
                         where, path));
  }
}

void print_plan(RunLog& log, int64_t zero_stage, const BatchConfig& batch, const ReductionGroups& groups) {
  log.print(fmt::format(
      "plan       ZeRO {}, micro-batch {}, global batch {} x {} tokens, {} accumulation steps, {} reduction "
      "group{}",
      zero_stage, batch.micro, batch.global, batch.sequence_length, batch.gradient_accumulation_steps, groups.count,
      groups.count == 1 ? "" : "s"));
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
