#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Location of a part of the state while no kernel works on it: device memory, host memory, a local disk.
enum class Offload : uint8_t { none, cpu, nvme };

/// Order in which the gradients of reduction groups are added: from the left, or along a binary tree.
enum class Reduction : uint8_t { ordered, tree };

/// Heads that a rank has during attention, where ranks share rows. ulysses: each key head is on one rank. gather: ranks
/// with query heads of one key head each gather its keys and values.
enum class ContextMethod : uint8_t { automatic, ulysses, gather };

/// Most ranks, and blocks, along the axes.
inline constexpr int64_t max_context = 128, max_tensor = 64, max_expert = 64;
/// Blocks of the experts of a layer, or of its block of split matrices, each in units of their own, unless more ranks
/// share them.
inline constexpr int64_t usual_expert_blocks = 8;

/// [parallel]
struct ParallelConfig {
  int64_t zero = 1;  ///< ZeRO stage 0..3
  Reduction reduction = Reduction::ordered;
  int64_t reduction_groups = 0;  ///< G; 0 = one micro-batch per group
  int64_t reduction_blocks = 1;  ///< H; not more than the number of groups
  int64_t context = 1;           ///< C: ranks that share the rows of a micro-batch
  int64_t context_blocks = 0;    ///< 0: as context
  int64_t tensor = 1;            ///< T: ranks that share matrices
  int64_t tensor_blocks = 0;     ///< 0: as tensor
  int64_t expert = 1;            ///< ranks that share experts, for rows of their own
  ContextMethod context_method = ContextMethod::automatic;
  /// B: blocks of rows whose gradients are apart.
  int64_t row_blocks() const { return context_blocks == 0 ? context : context_blocks; }
  /// S: blocks of every split matrix.
  int64_t matrix_blocks() const { return tensor_blocks == 0 ? tensor : tensor_blocks; }
  /// Blocks of the experts of a layer, or of each of its blocks of split matrices.
  int64_t expert_blocks(int64_t experts) const {
    return std::gcd(experts / matrix_blocks(), std::max(expert, usual_expert_blocks));
  }
  /// Ranks that have all blocks of matrices or experts together.
  int64_t ranks_of_blocks() const { return tensor * expert; }
  /// True if attention over so many blocks of rows divides the heads among as many ranks: each has some key heads, or,
  /// unless by ulysses, some of the query heads of one.
  bool divides_heads(int64_t blocks, int64_t heads, int64_t key_heads) const {
    const bool gathers = context_method != ContextMethod::ulysses && heads % blocks == 0;
    return key_heads % blocks == 0 || (gathers && blocks % key_heads == 0);
  }
  bool cuda_graphs = true;  ///< no effect on the host
  Offload offload_optimizer = Offload::none;
  Offload offload_parameters = Offload::none;  ///< at ZeRO stage 3
  std::string offload_path;                    ///< folder for Offload::nvme

  bool uses_disk() const { return offload_optimizer == Offload::nvme || offload_parameters == Offload::nvme; }

  void visit(DeckKeys& keys);
  /// States of a paged optimizer lie in host memory, or where offloaded parameters lie.
  void page_states(DeckLoader& deck, const std::string& why);
  void resolve(DeckLoader& deck, int64_t micro_batches);
};

template <>
inline constexpr auto enum_names<ContextMethod> = name_list("auto", "ulysses", "gather");

template <>
inline constexpr auto enum_names<Reduction> = name_list("ordered", "tree");

template <>
inline constexpr auto enum_names<Offload> = name_list("none", "cpu", "nvme");

}  // namespace llmtrain
