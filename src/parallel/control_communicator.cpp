#include "parallel/control_communicator.hpp"

#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "core/activity.hpp"
#include "parallel/mpi_transfer.hpp"
#include "parallel/node_grid.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

MPI_Comm node_communicator(MPI_Comm comm) {
  int rank = 0;
  mpi_check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  MPI_Comm machine = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  mpi_check(MPI_Comm_set_errhandler(machine, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  const char* given = std::getenv("LLMTRAIN_RANKS_PER_NODE");
  const int ranks_per_node = given == nullptr ? 0 : std::atoi(given);
  if (ranks_per_node <= 0) return machine;
  int machine_rank = 0;
  mpi_check(MPI_Comm_rank(machine, &machine_rank), "MPI_Comm_rank");
  MPI_Comm node = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split(machine, machine_rank / ranks_per_node, machine_rank, &node), "MPI_Comm_split");
  mpi_check(MPI_Comm_free(&machine), "MPI_Comm_free");
  return node;
}

NodePlace find_node_place(MPI_Comm comm) {
  NodePlace place{};
  mpi_check(MPI_Comm_rank(comm, &place.world_rank), "MPI_Comm_rank");
  MPI_Comm node = node_communicator(comm);
  mpi_check(MPI_Comm_rank(node, &place.rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(node, &place.size), "MPI_Comm_size");
  place.first_rank = place.world_rank;
  mpi_check(MPI_Bcast(&place.first_rank, 1, MPI_INT, 0, node), "MPI_Bcast");
  mpi_check(MPI_Comm_free(&node), "MPI_Comm_free");
  return place;
}

std::vector<std::string> mpi_gather_all(const std::string& mine, MPI_Comm comm) {
  const CollectiveScope scope("gather", static_cast<int64_t>(mine.size()));
  int rank = 0, size = 1;
  mpi_check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int64_t> lengths(static_cast<size_t>(size));
  const int64_t length = static_cast<int64_t>(mine.size());
  mpi_check(MPI_Allgather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, comm), "MPI_Allgather");

  std::vector<std::string> all(static_cast<size_t>(size));
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (total > max_message_bytes) {  // displacements do not fit an int
    for (int r = 0; r < size; ++r) {
      std::string& text = all[static_cast<size_t>(r)];
      if (r == rank) {
        text = mine;
      } else {
        text.resize(static_cast<size_t>(lengths[static_cast<size_t>(r)]));
      }
      mpi_broadcast(text.data(), static_cast<int64_t>(text.size()), r, comm);
    }
    return all;
  }
  std::vector<int> counts, offsets;
  int offset = 0;
  for (const int64_t n : lengths) {
    counts.push_back(static_cast<int>(n));
    offsets.push_back(offset);
    offset += static_cast<int>(n);
  }
  std::string joined(static_cast<size_t>(total), '\0');
  mpi_check(MPI_Allgatherv(mine.data(), static_cast<int>(length), MPI_CHAR, joined.data(), counts.data(),
                           offsets.data(), MPI_CHAR, comm),
            "MPI_Allgatherv");
  for (size_t r = 0; r < all.size(); ++r) {
    all[r] = joined.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(counts[r]));
  }
  return all;
}

ControlCommunicator::ControlCommunicator() : host_(mpi_duplicate(MPI_COMM_WORLD)) {
  mpi_check(MPI_Comm_rank(host_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(host_, &size_), "MPI_Comm_size");
  const NodePlace place = find_node_place(host_);
  node_rank_ = place.rank;
  node_size_ = place.size;
  std::vector<int> first_ranks(static_cast<size_t>(size_));
  mpi_check(MPI_Allgather(&place.first_rank, 1, MPI_INT, first_ranks.data(), 1, MPI_INT, host_), "MPI_Allgather");
  std::map<int, int> numbers;  // of nodes, by their first ranks, which come before their others
  std::vector<int> nodes;
  for (const int first : first_ranks) {
    nodes.push_back(numbers.emplace(first, static_cast<int>(numbers.size())).first->second);
  }
  node_count_ = static_cast<int>(numbers.size());
  ranks_per_node_ = consecutive_ranks_per_node(nodes);
  traffic().start(rank_, std::move(nodes));
}

Transfer Communicator::share_in_node(const Tensor& /*mine*/, std::span<const uint8_t> /*contributes*/) {
  throw Error("the ranks of a node share no memory");
}

Transfer Communicator::send_and_receive(std::span<const Message> /*sends*/, std::span<const Message> /*receives*/) {
  throw Error("this communicator has no messages between two ranks");
}

namespace {

class PlanningCommunicator final : public ControlCommunicator {
 public:
  std::string sharing_refusal(int64_t /*bytes*/) override { return {}; }
  std::shared_ptr<void> allocate_shared(int64_t /*bytes*/) override { return nullptr; }
  Transfer all_gather(const Tensor& /*buffer*/, std::span<const int64_t> /*borders*/, Stream& /*stream*/) override {
    throw Error("a plan cannot move tensors");
  }
  Transfer exchange_shards(const Tensor& /*send*/, std::span<const int64_t> /*borders*/,
                           std::span<const Tensor> /*received*/, std::span<const uint8_t> /*contributes*/,
                           Stream& /*stream*/) override {
    throw Error("a plan cannot move tensors");
  }
};

}  // namespace

std::unique_ptr<Communicator> make_control_communicator() { return std::make_unique<PlanningCommunicator>(); }

ControlCommunicator::~ControlCommunicator() { MPI_Comm_free(&host_); }

void ControlCommunicator::broadcast(void* data, int64_t bytes, int root) {
  end_duties();
  const CollectiveScope scope("broadcast", bytes);
  mpi_broadcast(data, bytes, root, host_);
}

void ControlCommunicator::broadcast(std::string& text, int root) {
  end_duties();
  int64_t length = static_cast<int64_t>(text.size());
  const CollectiveScope scope("broadcast", length);
  mpi_broadcast(&length, sizeof length, root, host_);
  text.resize(static_cast<size_t>(length));
  mpi_broadcast(text.data(), length, root, host_);
}

void ControlCommunicator::sum(std::span<int64_t> values) {
  end_duties();
  const CollectiveScope scope("sum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_SUM, host_);
}

void ControlCommunicator::maximum(std::span<int64_t> values) {
  end_duties();
  const CollectiveScope scope("maximum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_MAX, host_);
}

void ControlCommunicator::sum(std::span<uint64_t> values) {
  end_duties();
  const CollectiveScope scope("sum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_SUM, host_);
}

void ControlCommunicator::sum(ExactSum& value) {
  end_duties();
  value.carry();
  const CollectiveScope scope("sum", static_cast<int64_t>(value.limbs().size_bytes()));
  mpi_all_reduce(value.limbs(), MPI_SUM, host_);
}

std::vector<std::string> ControlCommunicator::gather_all(const std::string& mine) {
  end_duties();
  return mpi_gather_all(mine, host_);
}

void ControlCommunicator::barrier() {
  end_duties();
  const CollectiveScope scope("barrier", 0);
  mpi_check(MPI_Barrier(host_), "MPI_Barrier");
}

}  // namespace llmtrain
