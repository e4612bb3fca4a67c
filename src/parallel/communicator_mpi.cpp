// The device plane over MPI: host memory, nonblocking point-to-point messages on a communicator of its own.

#include "core/activity.hpp"
#include "parallel/communicator.hpp"
#include "parallel/host_plane.hpp"
#include "parallel/mpi_transfer.hpp"
#include "parallel/shard_range.hpp"

namespace llmtrain {

struct Transfer::State {
  MpiRequests requests;
  const char* operation;
  int64_t bytes;  ///< of the whole buffer
  uint64_t sequence = begin_collective();
};

Transfer::Transfer() = default;
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}

void Transfer::wait(Stream& /*stream*/) {
  if (state_) {
    const CollectiveScope scope(state_->operation, state_->bytes, state_->sequence);
    state_->requests.wait();
  }
  state_.reset();
}

bool Transfer::pending() const { return state_ && !state_->requests.test(); }

namespace {

constexpr int gather_tag = 1;
constexpr int exchange_tag = 2;

class MpiCommunicator final : public HostPlane {
 public:
  MpiCommunicator() : device_(mpi_duplicate(MPI_COMM_WORLD)) {}
  ~MpiCommunicator() override { MPI_Comm_free(&device_); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& /*stream*/) override {
    check_borders(buffer, borders, size());
    auto state = std::make_unique<Transfer::State>(Transfer::State{MpiRequests(device_), "all-gather", buffer.bytes()});
    // Receives first, so that messages find their place; each rank starts with another peer, so that none is swamped.
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + size() - i) % size();
      const ShardRange r = shard_range(buffer, borders, from);
      state->requests.receive(r.data, r.bytes, from, gather_tag);
    }
    const ShardRange mine = shard_range(buffer, borders, rank());
    for (int i = 1; i < size(); ++i) {
      state->requests.send(mine.data, mine.bytes, (rank() + i) % size(), gather_tag);
    }
    return Transfer(std::move(state));
  }

  Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                           std::span<const uint8_t> contributes, Stream& /*stream*/) override {
    if (contributes[static_cast<size_t>(rank())] != 0) check_borders(send, borders, size());
    check_exchange(borders, received, contributes, rank(), send.dtype);
    auto state = std::make_unique<Transfer::State>(Transfer::State{MpiRequests(device_), "exchange", send.bytes()});
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + size() - i) % size();
      if (contributes[static_cast<size_t>(from)] == 0) continue;
      const Tensor& place = received[static_cast<size_t>(from)];
      if (!place.empty()) state->requests.receive(place.data, place.bytes(), from, exchange_tag);
    }
    if (contributes[static_cast<size_t>(rank())] != 0) {
      for (int i = 1; i < size(); ++i) {
        const int to = (rank() + i) % size();
        const ShardRange r = shard_range(send, borders, to);
        state->requests.send(r.data, r.bytes, to, exchange_tag);
      }
    }
    return Transfer(std::move(state));
  }

 private:
  MPI_Comm device_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() { return std::make_unique<MpiCommunicator>(); }

}  // namespace llmtrain
