#pragma once
// The host plane, which is MPI in every build: small facts, agreement, and who lives on which node.

#include <mpi.h>

#include "parallel/communicator.hpp"

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
  void barrier() override;

 protected:
  ControlCommunicator();  ///< over MPI_COMM_WORLD

 private:
  MPI_Comm host_ = MPI_COMM_NULL;
};

/// Over all ranks of the job, for plans: it has no device plane, so that it needs no device.
std::unique_ptr<Communicator> make_control_communicator();

/// Number of this rank among the ranks of its node, how many these are, and its number among all.
struct NodePlace {
  int rank;
  int size;
  int world_rank;
};
NodePlace find_node_place(MPI_Comm comm);
/// The ranks of this node, to be freed by the caller. Tests cut a machine into several nodes: of as many consecutive
/// ranks as the environment variable LLMTRAIN_RANKS_PER_NODE says.
MPI_Comm node_communicator(MPI_Comm comm);

/// Every rank's bytes, in rank order, on every rank.
std::vector<std::string> mpi_gather_all(const std::string& mine, MPI_Comm comm);

}  // namespace llmtrain
