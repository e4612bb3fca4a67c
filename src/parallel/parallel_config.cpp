#include "parallel/parallel_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "device/device.hpp"

namespace llmtrain {

namespace {

/// Codec of "dynamic" or a number.
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
               "Distribution of the work over ranks. Only reduction_groups and reduction_blocks affect the results.",
               Change::nothing);
  keys.key("zero", zero,
           {.range = between(0, 3),
            .doc = "ZeRO stage, which selects what is sharded over the ranks: 0 nothing, 1 optimizer state, 2 also "
                   "gradients, 3 also weights."});
  keys.key("reduction_groups", reduction_groups,
           {.unit = "groups",
            .range = between(0, 1 << 20),
            .doc = "Number of groups of consecutive micro-batches; the gradients of a group are summed before they are "
                   "exchanged. Fewer groups need less communication, but ranks beyond the number of groups compute "
                   "nothing. 0 = one micro-batch per group.",
            .change = Change::breaks});
  keys.key("reduction_blocks", reduction_blocks,
           {.unit = "blocks",
            .range = between(1, 1 << 20),
            .doc = "Number of blocks of groups that are summed inside a node before they cross the network; not more "
                   "than the groups.",
            .change = Change::breaks});
  keys.key("offload_optimizer", offload_optimizer,
           {.doc = "Location of master weights and moments between updates. none: device memory; cpu: host memory; "
                   "nvme: a local disk, from which every update streams them through a few buffers. Checkpoints are "
                   "independent of offload settings: a run can resume with any other, bit for bit."});
  keys.key(
      "offload_parameters", offload_parameters,
      {.doc =
           "Location of a rank's shard of the weights with zero = 3, which is gathered around each use. bf16 weights "
           "are rounded from the masters, and are stored separately only if offload_optimizer moves the masters."});
  keys.key("offload_path", offload_path,
           {.doc = "Folder for nvme, on a local disk of each node, for instance ${TMPDIR} or ${SLURM_TMPDIR}. The "
                   "files reserve their space at the start, have no names, and vanish with the job, however it ends."});
  keys.key(
      "cuda_graphs", cuda_graphs,
      {.doc = "On GPUs, record passes without dropout as CUDA graphs, once per shape of micro-batch, and launch them "
              "as a whole, bit for bit. With zero below 3 this applies to all passes of a single rank, and on several "
              "ranks to those between the first and the last of a reduction group. No effect elsewhere."});
}

namespace {

void check_offload(DeckLoader& deck, const ParallelConfig& config) {
  deck.check(config.offload_parameters == Offload::none || config.zero == 3,
             {"parallel.offload_parameters", "parallel.zero"},
             fmt::format("{} needs parallel.zero = 3: at stage {} every rank keeps all weights",
                         name_of(config.offload_parameters), config.zero));
  if (config.uses_disk()) {
    deck.check(!config.offload_path.empty(),
               {"parallel.offload_path", "parallel.offload_optimizer", "parallel.offload_parameters"},
               "is required with nvme: give a folder on a local disk of each node, such as ${TMPDIR}");
  } else {
    deck.unused("parallel.offload_path", "no effect without offload_optimizer or offload_parameters = nvme");
  }
  const Offload optimizer = config.offload_optimizer, parameters = config.offload_parameters;
  deck.check(optimizer == parameters || optimizer == Offload::none || parameters == Offload::none,
             {"parallel.offload_parameters", "parallel.offload_optimizer"},
             fmt::format("{} cannot be combined with offload_optimizer = {}: use the same value for both",
                         name_of(parameters), name_of(optimizer)));
  const auto note_place = [&](std::string_view key, Offload place) {
    if (place != Offload::cpu || !device_memory_is_host()) return;
    deck.note(key, "cpu has no effect here: the host is the device, and all state is in its memory");
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
  keys.section("precision", "Number formats. Master weights, moments, norms, softmax, loss and sums are fp32 or wider.",
               Change::applies);
  keys.key("compute", compute,
           {.doc = "Type of weights and activations in the passes. auto: bf16 if device and libraries are fast at it, "
                   "else fp32. tf32: fp32 whose matrix products round operands to 10 bits of mantissa on a GPU; fp32 "
                   "on a CPU. fp16: with loss scaling.",
            .change = Change::breaks});
  constexpr double most = 4294967296;  // 2^32
  keys.key<LossScaleCodec>("loss_scale", loss_scale,
                           {.range = between(1, most),
                            .doc = "Factor on the mean loss for the backward pass in fp16. dynamic: a step whose "
                                   "gradients overflow is skipped, also by Adam's step count and the schedule, and "
                                   "halves the scale; loss_scale_window steps without overflow double it."});
  keys.key("initial_loss_scale", initial_loss_scale,
           {.range = between(1, most),
            .doc = "Initial value of a dynamic scale; a power of 2 causes no rounding.",
            .change = Change::breaks});
  keys.key("loss_scale_window", loss_scale_window,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of consecutive steps without overflow after which a dynamic scale doubles."});
  keys.key("loss_scale_hysteresis", loss_scale_hysteresis,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of steps with overflow after which a dynamic scale is halved; each further one halves it "
                   "again, until it doubles."});
  keys.key("min_loss_scale", min_loss_scale,
           {.range = between(1, most),
            .doc = "Minimum of a dynamic scale; a step whose gradients overflow at the minimum is a bad step "
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
  keys.section("memory", "Memory of a rank. Nothing here affects the results.", Change::nothing);
  keys.key(
      "recompute", recompute,
      {.doc = "Activations that the backward pass recomputes. none: outputs of norms, and in half precision the sum of "
              "the residual stream and attention; activation: also outputs of activation functions; attention: also "
              "queries, keys, values and the output of attention; block: everything except the input of each block."});
  keys.key("limit", limit,
           {.unit = "bytes",
            .range = at_least(0),
            .doc = "Maximum memory of a rank. A run whose plan and process together (the total of --estimate) exceed "
                   "it ends before the first step; 0 = the rank's share of the memory of its node or GPU."});
}

void WatchdogConfig::visit(DeckKeys& keys) {
  keys.section(
      "watchdog",
      "Hang detection. If a rank is lost or stuck, the job prints the state of every rank and ends with exit code 76.",
      Change::nothing);
  keys.key("enabled", enabled,
           {.doc = "Detect lost and stuck ranks. false: a job with such a rank hangs until its time limit."});
  keys.key("lost_after", lost_after,
           {.doc = "Time without a heartbeat after which a rank is lost: killed, stopped, or on a failed node. It must "
                   "exceed the time in which the file system shows one node's small files to another."});
  keys.key("stuck_after", stuck_after,
           {.doc = "Time without progress after which a living rank is stuck (or 10 times the duration of its longest "
                   "work item); waiting for others does not count."});
  keys.key("io_stuck_after", io_stuck_after,
           {.doc = "The same time while a rank reads or writes files, and for ranks that all wait for each other."});
}

void WatchdogConfig::resolve(DeckLoader& deck) const {
  if (!enabled) {
    for (const char* key : {"watchdog.lost_after", "watchdog.stuck_after", "watchdog.io_stuck_after"}) {
      deck.unused(key, "no effect with enabled = false");
    }
    return;
  }
  const auto positive = [&](std::string_view key, const Duration& value) {
    deck.check(value.seconds > 0, {key},
               "must be longer than 0 s: set watchdog.enabled = false to disable the watchdog");
  };
  positive("watchdog.lost_after", lost_after);
  positive("watchdog.stuck_after", stuck_after);
  positive("watchdog.io_stuck_after", io_stuck_after);
}

}  // namespace llmtrain
