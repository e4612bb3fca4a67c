#pragma once
#include <span>
#include <string>

namespace llmtrain {

/// Chooses the GPU of a rank, as an index into those that it sees: the ranks of a node take the GPUs in the order of
/// their bus addresses, round robin where there are fewer GPUs than ranks. A launcher may show each rank one GPU of its
/// own, all of the node's, or all in a different order (the nearest first). A rank that is alone on its node takes the
/// first that it sees: the fastest, or the first of CUDA_VISIBLE_DEVICES. `addresses` is not empty.
int choose_device(std::span<const std::string> addresses, int node_rank, int ranks_of_node);

}  // namespace llmtrain
