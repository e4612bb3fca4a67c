#pragma once
// Control communication, over MPI in every build: small values, agreement, and the assignment of ranks to nodes.

#include <mpi.h>

#include "parallel/communicator.hpp"
#include "parallel/mpi_transfer.hpp"
#include "parallel/node_copies.hpp"

namespace llmtrain {

class ControlCommunicator : public Communicator {
 public:
  ControlCommunicator(const ControlCommunicator&) = delete;
  ControlCommunicator& operator=(const ControlCommunicator&) = delete;
  ~ControlCommunicator() override;

  void broadcast(void* data, int64_t bytes, int root) override;
  void broadcast(std::string& text, int root) override;
  void sum(std::span<int64_t> values) override;
  void sum(std::span<uint64_t> values) override;
  void maximum(std::span<int64_t> values) override;
  void sum(ExactSum& value) override;
  std::vector<std::string> gather_all(const std::string& mine) override;
  std::vector<std::string> gather(const std::string& mine) override;
  void copy_between(void* data, int64_t bytes, int from, int to) override;
  std::shared_ptr<const void> share_in_nodes(const void* data, int64_t bytes) override;
  void barrier() override;

 protected:
  ControlCommunicator();  ///< over MPI_COMM_WORLD
  /// Over the ranks of `job` that give the same number.
  ControlCommunicator(const ControlCommunicator& job, int number);
  MPI_Comm host() const { return host_; }
  /// Called before this rank waits for all others: ends what others of its node expect from it.
  virtual void finish_forwarding() {}

 private:
  MPI_Comm host_ = MPI_COMM_NULL;
  std::unique_ptr<NodeCopies> copies_;  ///< made at their first use
};

/// All ranks of the job, for plans: without data communication, so that it needs no device.
std::unique_ptr<Communicator> make_control_communicator();

/// Index of this rank among the ranks of its node, their number, its index in the job, and that of the node's first
/// rank.
struct NodePlace {
  int rank;
  int size;
  int world_rank;
  int first_rank;
};
NodePlace find_node_place(MPI_Comm comm);
/// The ranks of this node, to be freed by the caller. Tests split a machine into several nodes of as many consecutive
/// ranks as the environment variable LLMTRAIN_RANKS_PER_NODE says.
MPI_Comm node_communicator(MPI_Comm comm);
/// The same for a group of the job's ranks, after the job's communicator was made.
MPI_Comm node_communicator_of_group(MPI_Comm group);

/// Gathers every rank's bytes, in rank order, on every rank; longer ones than `piece_bytes` altogether one by one.
std::vector<std::string> mpi_gather_all(const std::string& mine, MPI_Comm comm,
                                        int64_t piece_bytes = max_message_bytes);
/// The same on rank 0 alone; on others the result is empty.
std::vector<std::string> mpi_gather(const std::string& mine, MPI_Comm comm, int64_t piece_bytes = max_message_bytes);

}  // namespace llmtrain
