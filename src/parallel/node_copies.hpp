#pragma once
#include <mpi.h>

#include <cstdint>
#include <memory>

namespace llmtrain {

/// Copies of rank 0's data: sent down a tree to one rank of each node, into memory that the node shares. Where that
/// would take much of its /dev/shm, which gradients and weights need more, each of its ranks has a copy.
class NodeCopies {
 public:
  /// Collective over the ranks of `all`; takes ownership of `node`, the communicator of this node's ranks.
  NodeCopies(MPI_Comm all, MPI_Comm node);
  ~NodeCopies();
  NodeCopies(const NodeCopies&) = delete;
  NodeCopies& operator=(const NodeCopies&) = delete;

  /// Collective. `data` is read on rank 0 alone; `bytes` is the same on every rank.
  std::shared_ptr<const void> copy(const void* data, int64_t bytes);

 private:
  /// Collective over the node. Null where it has no room.
  std::shared_ptr<void> shared_memory(int64_t bytes);

  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Comm leaders_ = MPI_COMM_NULL;  ///< of the first rank of each node; null on others
  int rank_ = 0, node_rank_ = 0, node_size_ = 1;
  int64_t number_ = 0;
};

}  // namespace llmtrain
