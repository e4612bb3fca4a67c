#include "parallel/shard_messages.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

namespace {

constexpr int gather_tag = 1;
constexpr int exchange_tag = 2;
constexpr int node_tag = 3;

}  // namespace

ShardRange shard_range(const Tensor& buffer, std::span<const int64_t> borders, int rank) {
  const int64_t begin = borders[static_cast<size_t>(rank)], end = borders[static_cast<size_t>(rank) + 1];
  const int64_t width = static_cast<int64_t>(size_of(buffer.dtype));
  return {static_cast<char*>(buffer.data) + begin * width, (end - begin) * width};
}

void check_borders(const Tensor& buffer, std::span<const int64_t> borders, int size) {
  LLMTRAIN_CHECK(borders.size() > static_cast<size_t>(size) && (borders.size() - 1) % static_cast<size_t>(size) == 0,
                 "one border more than ranks");
  LLMTRAIN_CHECK(
      std::is_sorted(borders.begin(), borders.end()) && borders.front() >= 0 && borders.back() <= buffer.numel(),
      "shard borders leave the buffer");
}

void check_exchange(std::span<const int64_t> borders, std::span<const Tensor> received,
                    std::span<const uint8_t> contributes, int rank, DType dtype) {
  LLMTRAIN_CHECK(received.size() + 1 == borders.size() && contributes.size() + 1 == borders.size(),
                 "one buffer and one flag per rank");
  const size_t me = static_cast<size_t>(rank);
  const int64_t own = borders[me + 1] - borders[me];
  for (size_t r = 0; r < received.size(); ++r) {
    if (contributes[r] == 0 || r == me || own == 0) continue;
    LLMTRAIN_CHECK(!received[r].empty() && received[r].numel() == own && received[r].dtype == dtype,
                   "the buffer of a received shard must have the length of this rank's range");
  }
}

// Receives are posted first, so that arriving messages have a buffer; each rank starts with a different peer, so that
// none is flooded.

void begin_gather(MpiRequests& requests, const Tensor& buffer, std::span<const int64_t> borders, int rank,
                  const ByMessage& by_message) {
  const int size = static_cast<int>(borders.size()) - 1;
  for (int i = 1; i < size; ++i) {
    const int from = (rank + size - i) % size;
    const ShardRange r = shard_range(buffer, borders, from);
    if (by_message(from)) requests.receive(r.data, r.bytes, from, gather_tag);
  }
  const ShardRange mine = shard_range(buffer, borders, rank);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    if (by_message(to)) requests.send(mine.data, mine.bytes, to, gather_tag);
  }
}

UnitShards::UnitShards(const Tensor& buffer, std::span<const int64_t> borders, int size, int64_t nodes)
    : buffer_(buffer), borders_(borders), size_(size), nodes_(nodes) {}

/// Returns true if the shards in `parts` are one message.
bool UnitShards::collect(int owner, std::vector<MpiRequests::Part>& parts) const {
  parts.clear();
  int64_t bytes = 0;
  each_segment(borders_, size_, [&](std::span<const int64_t> segment) {
    const ShardRange r = shard_range(buffer_, segment, owner);
    parts.push_back({r.data, r.bytes});
    bytes += r.bytes;
  });
  return joins_segments(std::ssize(parts), bytes, nodes_);
}

void UnitShards::send(MpiRequests& requests, int owner, int to, std::vector<MpiRequests::Part>& parts) const {
  if (collect(owner, parts)) return requests.send(parts, to, gather_tag);
  for (const MpiRequests::Part& part : parts) requests.send(part.data, part.bytes, to, gather_tag);
}

void UnitShards::receive(MpiRequests& requests, int owner, std::vector<MpiRequests::Part>& parts) const {
  if (collect(owner, parts)) return requests.receive(parts, owner, gather_tag);
  for (const MpiRequests::Part& part : parts) requests.receive(part.data, part.bytes, owner, gather_tag);
}

void begin_messages(MpiRequests& requests, std::span<const Communicator::Message> sends,
                    std::span<const Communicator::Message> receives) {
  for (const Communicator::Message& m : receives) requests.receive(m.data.data, m.data.bytes(), m.rank, node_tag);
  for (const Communicator::Message& m : sends) requests.send(m.data.data, m.data.bytes(), m.rank, node_tag);
}

void begin_exchange(MpiRequests& requests, const Tensor& send, std::span<const int64_t> borders,
                    std::span<const Tensor> received, std::span<const uint8_t> contributes, int rank,
                    const ByMessage& by_message) {
  const int size = static_cast<int>(borders.size()) - 1;
  for (int i = 1; i < size; ++i) {
    const int from = (rank + size - i) % size;
    const Tensor& place = received[static_cast<size_t>(from)];
    if (contributes[static_cast<size_t>(from)] == 0 || place.empty() || !by_message(from)) continue;
    requests.receive(place.data, place.bytes(), from, exchange_tag);
  }
  if (contributes[static_cast<size_t>(rank)] == 0) return;
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    const ShardRange r = shard_range(send, borders, to);
    if (by_message(to)) requests.send(r.data, r.bytes, to, exchange_tag);
  }
}

}  // namespace llmtrain
