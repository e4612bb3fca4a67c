#include "parallel/parallel_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "device/device.hpp"

namespace llmtrain {

void ParallelConfig::visit(DeckKeys& keys) {
  keys.section("parallel", "How ranks share the work. Only reduction_groups and reduction_blocks touch the results.",
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

}  // namespace llmtrain
