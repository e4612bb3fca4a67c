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

MPI_Comm node_communicator_of_group(MPI_Comm group) {
  int rank = 0, job_rank = 0;
  mpi_check(MPI_Comm_rank(group, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &job_rank), "MPI_Comm_rank");
  MPI_Comm node = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split(group, traffic().node_of(job_rank), rank, &node), "MPI_Comm_split");
  mpi_check(MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
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

namespace {

/// A text of each rank, in the order of ranks.
class RankTexts {
 public:
  /// Collective.
  RankTexts(const std::string& mine, MPI_Comm comm, int64_t piece_bytes)
      : mine_(mine), comm_(comm), piece_(piece_bytes) {
    int size = 1;
    mpi_check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    lengths_.resize(static_cast<size_t>(size));
    const auto length = static_cast<int64_t>(mine.size());
    mpi_check(MPI_Allgather(&length, 1, MPI_INT64_T, lengths_.data(), 1, MPI_INT64_T, comm), "MPI_Allgather");
    total_ = std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
  }

  std::vector<std::string> on_all() {
    std::vector<std::string> all;
    if (!fits()) {
      for (int r = 0; r < std::ssize(lengths_); ++r) {
        std::string& text = all.emplace_back(text_or_room(r));
        mpi_broadcast(text.data(), static_cast<int64_t>(text.size()), r, comm_, piece_);
      }
      return all;
    }
    lay_out();
    mpi_check(MPI_Allgatherv(mine_.data(), static_cast<int>(mine_.size()), MPI_CHAR, joined_.data(), counts_.data(),
                             offsets_.data(), MPI_CHAR, comm_),
              "MPI_Allgatherv");
    return divided();
  }
  /// Empty on other ranks than 0.
  std::vector<std::string> on_root() {
    std::vector<std::string> all;
    if (!fits() && rank_ != 0) {
      mpi_send(mine_.data(), static_cast<int64_t>(mine_.size()), 0, comm_, piece_);
    } else if (!fits()) {
      for (int r = 0; r < std::ssize(lengths_); ++r) {
        std::string& text = all.emplace_back(text_or_room(r));
        if (r != 0) mpi_receive(text.data(), static_cast<int64_t>(text.size()), r, comm_, piece_);
      }
    } else {
      if (rank_ == 0) lay_out();
      mpi_check(MPI_Gatherv(mine_.data(), static_cast<int>(mine_.size()), MPI_CHAR, joined_.data(), counts_.data(),
                            offsets_.data(), MPI_CHAR, 0, comm_),
                "MPI_Gatherv");
      all = divided();
    }
    return all;
  }

 private:
  /// False if displacements would not fit an int.
  bool fits() const { return total_ <= piece_; }
  std::string text_or_room(int r) const {
    return r == rank_ ? mine_ : std::string(static_cast<size_t>(lengths_[static_cast<size_t>(r)]), '\0');
  }
  void lay_out() {
    for (const int64_t length : lengths_) {
      offsets_.push_back(counts_.empty() ? 0 : offsets_.back() + counts_.back());
      counts_.push_back(static_cast<int>(length));
    }
    joined_.resize(static_cast<size_t>(total_));
  }
  std::vector<std::string> divided() const {
    std::vector<std::string> all;
    for (size_t r = 0; r < counts_.size(); ++r) {
      all.push_back(joined_.substr(static_cast<size_t>(offsets_[r]), static_cast<size_t>(counts_[r])));
    }
    return all;
  }

  const std::string& mine_;
  MPI_Comm comm_;
  int64_t piece_;
  int rank_ = 0;
  std::vector<int64_t> lengths_;
  int64_t total_ = 0;
  std::vector<int> counts_, offsets_;
  std::string joined_;
};

}  // namespace

std::vector<std::string> mpi_gather_all(const std::string& mine, MPI_Comm comm, int64_t piece_bytes) {
  const CollectiveScope scope("gather", static_cast<int64_t>(mine.size()));
  return RankTexts(mine, comm, piece_bytes).on_all();
}

std::vector<std::string> mpi_gather(const std::string& mine, MPI_Comm comm, int64_t piece_bytes) {
  const CollectiveScope scope("gather", static_cast<int64_t>(mine.size()));
  return RankTexts(mine, comm, piece_bytes).on_root();
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
  nodes.reserve(static_cast<size_t>(size_));
  for (const int first : first_ranks) {
    nodes.push_back(numbers.emplace(first, static_cast<int>(numbers.size())).first->second);
  }
  node_count_ = static_cast<int>(numbers.size());
  ranks_per_node_ = consecutive_ranks_per_node(nodes);
  traffic().start(rank_, std::move(nodes));
}

ControlCommunicator::ControlCommunicator(const ControlCommunicator& job, int number) {
  mpi_check(MPI_Comm_split(job.host_, number, job.rank(), &host_), "MPI_Comm_split");
  mpi_check(MPI_Comm_set_errhandler(host_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_check(MPI_Comm_rank(host_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(host_, &size_), "MPI_Comm_size");
  job_ranks_.resize(static_cast<size_t>(size_));
  const int own = job.job_rank(job.rank());
  mpi_check(MPI_Allgather(&own, 1, MPI_INT, job_ranks_.data(), 1, MPI_INT, host_), "MPI_Allgather");
  std::map<int, int> numbers;  // of the group's nodes, by those of the job
  std::vector<int> nodes;
  nodes.reserve(job_ranks_.size());
  node_size_ = 0;
  for (int other = 0; other < size_; ++other) {
    const int node = traffic().node_of(job_rank(other));
    nodes.push_back(numbers.emplace(node, static_cast<int>(numbers.size())).first->second);
    if (node != traffic().node_of(own)) continue;
    if (other == rank_) node_rank_ = node_size_;
    ++node_size_;
  }
  node_count_ = static_cast<int>(numbers.size());
  ranks_per_node_ = consecutive_ranks_per_node(nodes);
}

Transfer Communicator::share_in_node(const Tensor& /*mine*/, std::span<const uint8_t> /*contributes*/) {
  throw Error("the ranks of a node share no memory");
}

Transfer Communicator::send_and_receive(std::span<const Message> /*sends*/, std::span<const Message> /*receives*/,
                                        Stream& /*stream*/) {
  throw Error("this communicator has no messages between two ranks");
}

namespace {

class PlanningCommunicator final : public ControlCommunicator {
 public:
  PlanningCommunicator() = default;
  PlanningCommunicator(const PlanningCommunicator& job, int number) : ControlCommunicator(job, number) {}

  std::unique_ptr<Communicator> make_group(int number) override {
    return std::make_unique<PlanningCommunicator>(*this, number);
  }
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
  finish_forwarding();
  const CollectiveScope scope("broadcast", bytes);
  mpi_broadcast(data, bytes, root, host_);
}

void ControlCommunicator::broadcast(std::string& text, int root) {
  finish_forwarding();
  int64_t length = static_cast<int64_t>(text.size());
  const CollectiveScope scope("broadcast", length);
  mpi_broadcast(&length, sizeof length, root, host_);
  text.resize(static_cast<size_t>(length));
  mpi_broadcast(text.data(), length, root, host_);
}

void ControlCommunicator::sum(std::span<int64_t> values) {
  finish_forwarding();
  const CollectiveScope scope("sum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_SUM, host_);
}

void ControlCommunicator::maximum(std::span<int64_t> values) {
  finish_forwarding();
  const CollectiveScope scope("maximum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_MAX, host_);
}

void ControlCommunicator::sum(std::span<uint64_t> values) {
  finish_forwarding();
  const CollectiveScope scope("sum", static_cast<int64_t>(values.size_bytes()));
  mpi_all_reduce(values, MPI_SUM, host_);
}

void ControlCommunicator::sum(ExactSum& value) {
  finish_forwarding();
  value.carry();
  const CollectiveScope scope("sum", static_cast<int64_t>(value.limbs().size_bytes()));
  mpi_all_reduce(value.limbs(), MPI_SUM, host_);
}

std::vector<std::string> ControlCommunicator::gather_all(const std::string& mine) {
  finish_forwarding();
  return mpi_gather_all(mine, host_);
}

std::vector<std::string> ControlCommunicator::gather(const std::string& mine) {
  finish_forwarding();
  return mpi_gather(mine, host_);
}

void ControlCommunicator::copy_between(void* data, int64_t bytes, int from, int to) {
  if (from == to || (rank() != from && rank() != to)) return;
  finish_forwarding();
  const CollectiveScope scope("message", bytes, activity().collectives.load());
  if (rank() == from) {
    mpi_send(data, bytes, to, host_);
  } else {
    mpi_receive(data, bytes, from, host_);
  }
}

std::shared_ptr<const void> ControlCommunicator::share_in_nodes(const void* data, int64_t bytes) {
  finish_forwarding();
  const CollectiveScope scope("sharing of data", bytes);
  if (copies_ == nullptr) {
    copies_ = std::make_unique<NodeCopies>(
        host_, job_ranks_.empty() ? node_communicator(host_) : node_communicator_of_group(host_));
  }
  return copies_->copy(data, bytes);
}

void ControlCommunicator::barrier() {
  finish_forwarding();
  const CollectiveScope scope("barrier", 0);
  mpi_check(MPI_Barrier(host_), "MPI_Barrier");
}

}  // namespace llmtrain
