#include "parallel/parallel_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "device/device.hpp"

namespace llmtrain {

void ParallelConfig::visit(DeckKeys& keys) {
  keys.section(
      "parallel",
      "Divide the work among the ranks. Only the keys of blocks, reduction and reduction_groups touch the results.",
      Change::nothing, model_tasks);
  keys.key("zero", zero,
           {.range = between(0, 3),
            .doc = "ZeRO stage, which selects what is sharded over the ranks: 0 nothing, 1 optimizer state, 2 also "
                   "gradients, 3 also weights."});
  keys.key("reduction", reduction,
           {.doc = "Order in which the gradients of groups are added. ordered: from the left, at the owner of a shard; "
                   "every group crosses the network. tree: along a binary tree over the groups, so that a rank, then a "
                   "node, adds its own groups before they cross the network, once a step (zero 2 and 3: once for each "
                   "group of a rank); it keeps partial sums where "
                   "a rank has several groups (reduction_groups above the number of ranks).",
            .change = Change::breaks,
            .tasks = training_tasks});
  keys.key("reduction_groups", reduction_groups,
           {.unit = "groups",
            .range = between(0, 1 << 20),
            .doc = "Number of groups of consecutive micro-batches; the gradients of a group are summed before they are "
                   "exchanged. Fewer groups need less communication, but ranks beyond the number of groups compute "
                   "nothing. 0 = one micro-batch per group.",
            .change = Change::breaks,
            .tasks = training_tasks});
  keys.key("reduction_blocks", reduction_blocks,
           {.unit = "blocks",
            .range = between(1, 1 << 20),
            .doc = "Number of blocks of groups that the owner of a shard sums before it adds the blocks; not more than "
                   "the groups. It changes the order of additions, not what crosses the network (see reduction).",
            .change = Change::breaks,
            .tasks = training_tasks});
  keys.key(
      "context", context,
      {.unit = "ranks",
       .range = between(1, max_context),
       .doc = "Number of ranks that share the rows of each micro-batch, for long sequences: each rank has some rows "
              "of all heads, and during attention all rows of some heads. It divides the ranks and context_blocks.",
       .tasks = training_tasks});
  keys.key(
      "context_blocks", context_blocks,
      {.unit = "blocks",
       .range = between(0, max_context),
       .doc = "Number of blocks of rows of each micro-batch, a power of two, whose gradients of weights are formed "
              "apart and added as parallel.reduction says: runs of any context that divides it have the same results. "
              "0 = as context.",
       .change = Change::breaks,
       .tasks = training_tasks});
  keys.key(
      "context_method", context_method,
      {.doc = "Keys and values in attention over shared rows. ulysses: each key head is on one rank, which needs as "
              "many key heads as context_blocks; gather: ranks that have query heads of one key head each gather "
              "its keys and values, whose gradients are added by block; auto: ulysses where the key heads suffice.",
       .tasks = training_tasks});
  keys.key("tensor", tensor,
           {.unit = "ranks",
            .range = between(1, max_tensor),
            .doc = "Number of ranks of a node that share the matrices of each layer, and its activations inside "
                   "attention and MLP: each has some heads, hidden channels and tokens of the vocabulary. It divides "
                   "the ranks and tensor_blocks."});
  keys.key("tensor_blocks", tensor_blocks,
           {.unit = "blocks",
            .range = between(0, max_tensor),
            .doc = "Number of blocks, a power of two, into which every split matrix is divided: runs of any tensor "
                   "that divides it have the same results. 0 = as tensor.",
            .change = Change::breaks});
  keys.key("expert", expert,
           {.unit = "ranks",
            .range = between(1, max_expert),
            .doc = "Number of ranks, a power of two, that share the experts of each layer: each has some of them, to "
                   "which the others send their rows. It divides ranks / tensor and n_experts / tensor_blocks; 1 to 8 "
                   "have the same results. With tensor a rank has 1 / (expert x tensor) of the experts."});
  keys.key("offload_optimizer", offload_optimizer,
           {.doc = "Location of master weights and moments between updates. none: device memory; cpu: host memory; "
                   "nvme: a local disk, from which every update streams them through a few buffers. Checkpoints are "
                   "independent of offload settings: a run can resume with any other, bit for bit.",
            .tasks = training_tasks});
  keys.key(
      "offload_parameters", offload_parameters,
      {.doc =
           "Location of a rank's shard of the weights with zero = 3, which is gathered around each use. bf16 weights "
           "are rounded from the masters, and are stored separately only if offload_optimizer moves the masters.",
       .tasks = training_tasks});
  keys.key("offload_path", offload_path,
           {.doc = "Folder for nvme, on a local disk of each node, for instance ${TMPDIR} or ${SLURM_TMPDIR}. The "
                   "files reserve their space at the start, have no names, and vanish with the job, however it ends.",
            .tasks = training_tasks});
  keys.key(
      "cuda_graphs", cuda_graphs,
      {.doc = "On GPUs, record passes as CUDA graphs, once per shape of micro-batch, and launch them "
              "as a whole, bit for bit. With zero below 3 this applies to all passes of a single rank, and on several "
              "ranks to those between the first and the last of a reduction group. Tokens of rollouts are decoded by a "
              "graph for each number of texts. No effect elsewhere.",
       .tasks = training_tasks});
}

namespace {

void check_groups(DeckLoader& deck, const ParallelConfig& config, int64_t micro_batches, int64_t groups) {
  if (config.row_blocks() == 1) return;
  deck.check(groups == micro_batches, {"parallel.reduction_groups", "parallel.context_blocks", "parallel.context"},
             "with blocks of rows every micro-batch is a group: leave it at 0");
}

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

void ParallelConfig::page_states(DeckLoader& deck, const std::string& why) {
  constexpr const char* key = "parallel.offload_optimizer";
  if (deck.given(key)) return;
  offload_optimizer = offload_parameters == Offload::none ? Offload::cpu : offload_parameters;
  deck.set(key, Origin::automatic, why);
}

void ParallelConfig::resolve(DeckLoader& deck, int64_t micro_batches) {
  const std::initializer_list<std::string_view> batch = {"parallel.reduction_groups", "batch.global", "batch.micro",
                                                         "batch.gradient_accumulation_steps"};
  deck.check(reduction_groups <= micro_batches, batch,
             fmt::format("{} is more than the {} micro-batches of a step", reduction_groups, micro_batches));
  const int64_t groups = reduction_groups == 0 ? micro_batches : reduction_groups;
  deck.check(reduction_blocks <= groups,
             {"parallel.reduction_blocks", "parallel.reduction_groups", "batch.global", "batch.micro",
              "batch.gradient_accumulation_steps"},
             fmt::format("{} is more than the {} reduction groups of a step", reduction_blocks, groups));
  deck.check(reduction == Reduction::ordered || reduction_blocks == 1,
             {"parallel.reduction_blocks", "parallel.reduction"}, "a tree has no blocks: leave reduction_blocks at 1");
  check_groups(deck, *this, micro_batches, groups);
  check_offload(deck, *this);
  const auto decide_blocks = [&](int64_t& blocks, int64_t ranks, const std::string& axis) {
    if (blocks > 0) return;
    blocks = ranks;
    deck.set("parallel." + axis + "_blocks", Origin::automatic, axis);
  };
  decide_blocks(context_blocks, context, "context");
  decide_blocks(tensor_blocks, tensor, "tensor");
}

}  // namespace llmtrain
