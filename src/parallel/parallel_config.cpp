#include "parallel/parallel_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "device/device.hpp"

namespace llmtrain {

namespace {

/// dynamic or a number.
struct LossScaleCodec {
  static double parse(std::string_view text, const KeyInfo& info) {
    return text == "dynamic" ? PrecisionConfig::dynamic : parse_number(text, info.range);
  }
  static std::string print(double scale) { return scale == PrecisionConfig::dynamic ? "dynamic" : print_number(scale); }
  static std::string type() { return "dynamic / number"; }
};

}  // namespace

void ParallelConfig::visit(DeckKeys& keys) {
  keys.section("parallel",
               "Divide the work among the ranks. Only reduction_groups and reduction_blocks touch the results.",
               Change::nothing);
  keys.key("zero", zero,
           {.range = between(0, 3),
            .doc = "ZeRO stage: what the ranks divide among them. 0 nothing, 1 optimizer state, 2 and gradients, 3 and "
                   "weights."});
  keys.key("reduction_groups", reduction_groups,
           {.unit = "groups",
            .range = between(0, 1 << 20),
            .doc = "Groups of consecutive micro-batches whose gradients are summed before they travel. Fewer: less "
                   "communication, and no use for more ranks than groups; 0 = one micro-batch per group.",
            .change = Change::breaks});
  keys.key("reduction_blocks", reduction_blocks,
           {.unit = "blocks",
            .range = between(1, 1 << 20),
            .doc = "Blocks of groups that are summed inside a node before they cross the network; at most the groups.",
            .change = Change::breaks});
  keys.key("offload_optimizer", offload_optimizer,
           {.doc = "Where master weights and moments lie between updates. none: with the device; cpu: in the memory of "
                   "its host; nvme: on a local disk, from which every update streams them through a few buffers."});
  keys.key("offload_parameters", offload_parameters,
           {.doc = "Where a rank's part of the weights lies with zero = 3, to be gathered around each use. Those of "
                   "bf16 are rounded from the masters, and lie apart only where offload_optimizer moves these."});
  keys.key("offload_path", offload_path,
           {.doc = "Folder for nvme, on a disk that each node has of its own: ${TMPDIR}, say, or ${SLURM_TMPDIR}. The "
                   "files take their space at the start, have no names, and vanish with the job, however it ends."});
  keys.key(
      "cuda_graphs", cuda_graphs,
      {.doc = "On GPUs, passes without dropout are recorded once per shape of micro-batch and then launched as a "
              "whole, to "
              "the same bits: all of one rank with zero below 3, of several ranks those between the first and the last "
              "of a reduction group. No effect elsewhere."});
}

namespace {

void check_offload(DeckLoader& deck, const ParallelConfig& config) {
  deck.check(config.offload_parameters == Offload::none || config.zero == 3,
             {"parallel.offload_parameters", "parallel.zero"},
             fmt::format("{} needs parallel.zero = 3: at {} every rank computes with all weights where they lie",
                         name_of(config.offload_parameters), config.zero));
  if (config.uses_disk()) {
    deck.check(!config.offload_path.empty(),
               {"parallel.offload_path", "parallel.offload_optimizer", "parallel.offload_parameters"},
               "is required with nvme: a folder on a disk that each node has of its own, such as ${TMPDIR}");
  } else {
    deck.unused("parallel.offload_path", "no effect without offload_optimizer or offload_parameters = nvme");
  }
  const Offload optimizer = config.offload_optimizer, parameters = config.offload_parameters;
  deck.check(optimizer == parameters || optimizer == Offload::none || parameters == Offload::none,
             {"parallel.offload_parameters", "parallel.offload_optimizer"},
             fmt::format("{} does not go with offload_optimizer = {}: both to one place", name_of(parameters),
                         name_of(optimizer)));
  const auto note_place = [&](std::string_view key, Offload place) {
    if (place != Offload::cpu || !device_memory_is_host()) return;
    deck.note(key, "cpu changes nothing here: the device that computes is the host, where all state lies anyway");
  };
  note_place("parallel.offload_optimizer", optimizer);
  note_place("parallel.offload_parameters", parameters);
}

}  // namespace

void ParallelConfig::resolve(DeckLoader& deck, int64_t micro_batches) const {
  const std::initializer_list<std::string_view> batch = {"parallel.reduction_groups", "batch.global", "batch.micro",
                                                         "batch.gradient_accumulation_steps"};
  deck.check(reduction_groups <= micro_batches, batch,
             fmt::format("{} is more than the {} micro-batches of a step", reduction_groups, micro_batches));
  const int64_t groups = reduction_groups == 0 ? micro_batches : reduction_groups;
  deck.check(reduction_blocks <= groups,
             {"parallel.reduction_blocks", "parallel.reduction_groups", "batch.global", "batch.micro",
              "batch.gradient_accumulation_steps"},
             fmt::format("{} is more than the {} reduction groups of a step", reduction_blocks, groups));
  check_offload(deck, *this);
}

void PrecisionConfig::visit(DeckKeys& keys) {
  keys.section("precision",
               "Choose the number format of the passes. Master weights, moments, norms, softmax, loss and sums are "
               "fp32 or wider.",
               Change::applies);
  keys.key("compute", compute,
           {.doc = "Weights and activations of the passes. auto: bf16 where device and libraries are fast at it, else "
                   "fp32. tf32: "
                   "fp32 whose matrix products round what they multiply to 10 bits of mantissa, on a GPU; on a CPU it "
                   "is fp32. fp16: with a scaled loss.",
            .change = Change::breaks});
  constexpr double most = 4294967296;  // 2^32
  keys.key<LossScaleCodec>("loss_scale", loss_scale,
                           {.range = between(1, most),
                            .doc = "What the mean loss is multiplied by for the backward pass in fp16. dynamic: a step "
                                   "whose gradients overflow is skipped, also by Adam's step count and the schedule, "
                                   "and the scale is halved; after a time without overflow it doubles."});
  keys.key("initial_loss_scale", initial_loss_scale,
           {.range = between(1, most),
            .doc = "Of a dynamic scale; a power of 2 costs no rounding.",
            .change = Change::breaks});
  keys.key("loss_scale_window", loss_scale_window,
           {.unit = "steps", .range = at_least(1), .doc = "A dynamic scale doubles after so many without overflow."});
  keys.key("loss_scale_hysteresis", loss_scale_hysteresis,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "A dynamic scale is halved by so many with overflow; afterwards by each, until it doubles."});
  keys.key("min_loss_scale", min_loss_scale,
           {.range = between(1, most),
            .doc = "A dynamic scale does not fall below it: gradients that overflow there are bad steps "
                   "(divergence.max_bad_steps)."});
}

void PrecisionConfig::resolve(DeckLoader& deck) const {
  const bool scaled = compute == Compute::fp16;
  constexpr const char* other_type = "no effect without compute = fp16";
  if (!scaled) deck.unused("precision.loss_scale", other_type);
  if (!scaled || loss_scale != dynamic) {
    for (const char* key : {"precision.initial_loss_scale", "precision.loss_scale_window",
                            "precision.loss_scale_hysteresis", "precision.min_loss_scale"}) {
      deck.unused(key, scaled ? "no effect with a fixed loss_scale" : other_type);
    }
    return;
  }
  deck.check(initial_loss_scale >= min_loss_scale, {"precision.min_loss_scale", "precision.initial_loss_scale"},
             fmt::format("{} is above initial_loss_scale = {}", min_loss_scale, initial_loss_scale));
}

DType compute_dtype(const PrecisionConfig& precision) {
  using Compute = PrecisionConfig::Compute;
  LLMTRAIN_CHECK(precision.compute != Compute::automatic, "precision.compute is not resolved");
  if (precision.compute == Compute::fp16) return DType::f16;
  return precision.compute == Compute::bf16 ? DType::bf16 : DType::f32;
}

void MemoryConfig::visit(DeckKeys& keys) {
  keys.section("memory", "Trade memory of a rank against time. Nothing here touches the results.", Change::nothing);
  keys.key("recompute", recompute,
           {.doc = "Activations that the backward pass computes again instead of keeping them. none: results of norms, "
                   "and in half precision the sum of the residual stream and attention; activation: and of activation "
                   "functions; attention: and queries, keys, values and the output of attention; block: everything "
                   "but the input of each block."});
  keys.key("limit", limit,
           {.unit = "bytes",
            .range = at_least(0),
            .doc = "A plan that exceeds it, together with the process (the total of --estimate), stops before the "
                   "first step; 0 = the rank's share of the memory of its node or GPU."});
}

void WatchdogConfig::visit(DeckKeys& keys) {
  keys.section("watchdog",
               "End the job with exit code 76, and report where every rank is, when a rank is lost or stuck.",
               Change::nothing);
  keys.key("enabled", enabled, {.doc = "false: a job whose rank is stopped or hangs stays until its time is up."});
  keys.key("lost_after", lost_after,
           {.doc = "A rank without a sign of life for so long is lost: killed, stopped, or its node gone. Longer than "
                   "the file system takes to show one node's small files to another."});
  keys.key("stuck_after", stuck_after,
           {.doc = "A rank that lives but gets nothing done for so long is stuck (or 10 times as long as its longest "
                   "piece of work took); waiting for others does not count."});
  keys.key("io_stuck_after", io_stuck_after,
           {.doc = "The same while it reads or writes files; also for ranks that all wait for each other."});
}

void WatchdogConfig::resolve(DeckLoader& deck) const {
  if (!enabled) {
    for (const char* key : {"watchdog.lost_after", "watchdog.stuck_after", "watchdog.io_stuck_after"}) {
      deck.unused(key, "no effect with enabled = false");
    }
    return;
  }
  const auto positive = [&](std::string_view key, const Duration& value) {
    deck.check(value.seconds > 0, {key}, "must be longer than 0 s; watchdog.enabled = false switches it off");
  };
  positive("watchdog.lost_after", lost_after);
  positive("watchdog.stuck_after", stuck_after);
  positive("watchdog.io_stuck_after", io_stuck_after);
}

}  // namespace llmtrain
