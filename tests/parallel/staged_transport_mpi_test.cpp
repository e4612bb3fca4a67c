#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "harness/harness.hpp"
#include "parallel/staged_transport.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

int rank() { return communicator().rank(); }
int size() { return communicator().size(); }

/// Shards of unequal length, the second one empty.
std::vector<int64_t> unequal_borders() {
  std::vector<int64_t> borders = {0};
  for (int r = 0; r < size(); ++r) borders.push_back(borders.back() + (r == 1 ? 0 : 256 * (r + 1)));
  return borders;
}

/// fp32 on the device.
class Values {
 public:
  explicit Values(int64_t count)
      : buffer_(std::max<int64_t>(count, 1) * 4), tensor(buffer_.data(), DType::f32, {count}) {}
  void set(const std::vector<float>& values) const {
    copy_to_device(tensor.data, values.data(), tensor.bytes(), stream());
    stream().synchronize();
  }
  std::vector<float> get() const {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    copy_to_host(values.data(), tensor.data, tensor.bytes(), stream());
    stream().synchronize();
    return values;
  }

 private:
  DeviceBuffer buffer_;

 public:
  Tensor tensor;
};

float value_of(int owner, int64_t element, int turn) {
  return static_cast<float>(turn * 1000000 + owner * 100000 + element);
}

/// Contents of a rank before a gather: its own range only.
std::vector<float> before_gather(const std::vector<int64_t>& borders, int turn) {
  std::vector<float> values(static_cast<size_t>(borders.back()), -1);
  for (auto i = static_cast<size_t>(rank()); i + 1 < borders.size(); i += static_cast<size_t>(size())) {
    for (int64_t e = borders[i]; e < borders[i + 1]; ++e) values[static_cast<size_t>(e)] = value_of(rank(), e, turn);
  }
  return values;
}

void expect_gathered(const Values& buffer, const std::vector<int64_t>& borders, int turn) {
  const std::vector<float> got = buffer.get();
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const int owner = static_cast<int>(i) % size();
    for (int64_t e = borders[i]; e < borders[i + 1]; ++e) {
      ASSERT_EQ(got[static_cast<size_t>(e)], value_of(owner, e, turn)) << "turn " << turn << ", element " << e;
    }
  }
}

/// More transfers than slots, waited for in a different order than started; a copy of the transport's size.
TEST(StagedTransport, ManyGathersAtOnceArriveWhole) {
  StagedTransport transport(MPI_COMM_WORLD);
  std::vector<int64_t> borders = unequal_borders();
  const std::vector<int64_t> segment = borders;
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 2) {  // two segments
      for (size_t i = 1; i < segment.size(); ++i) borders.push_back(segment.back() + segment[i]);
    }
    if (turn == 1) transport.reserve(4 * borders.back());
    std::vector<Values> buffers;
    std::vector<StagedTransport::Ticket> tickets;
    tickets.reserve(9);
    for (int i = 0; i < 9; ++i) {
      buffers.emplace_back(borders.back());
      buffers.back().set(before_gather(borders, 10 * turn + i));
    }
    for (const Values& buffer : buffers) tickets.push_back(transport.all_gather(buffer.tensor, borders, stream()));
    for (size_t i = tickets.size(); i-- > 0;) {
      transport.wait(tickets[i], {});
      EXPECT_TRUE(transport.arrived(tickets[i]));
      transport.wait(tickets[i], {});
    }
    for (int i = 0; i < 9; ++i) expect_gathered(buffers[static_cast<size_t>(i)], borders, 10 * turn + i);
  }
}

TEST(StagedTransport, ExchangesBringTheOwnRangeOfEveryContributor) {
  StagedTransport transport(MPI_COMM_WORLD);
  const std::vector<int64_t> borders = unequal_borders();
  const auto me = static_cast<size_t>(rank());
  const int64_t own = borders[me + 1] - borders[me];
  for (int set = 0; set < 1 << size(); ++set) {
    std::vector<uint8_t> contributes;
    std::vector<Values> places;
    std::vector<Tensor> received;
    for (int r = 0; r < size(); ++r) {
      contributes.push_back((set >> r & 1) != 0 ? 1 : 0);
      places.emplace_back(own);
      places.back().set(std::vector<float>(static_cast<size_t>(own), -1));
      received.push_back(r == rank() || own == 0 ? Tensor() : places.back().tensor);
    }
    const Values sent(borders.back());
    std::vector<float> values(static_cast<size_t>(borders.back()));
    for (size_t e = 0; e < values.size(); ++e) values[e] = value_of(rank(), static_cast<int64_t>(e), set);
    sent.set(values);
    const Tensor send = contributes[me] != 0 ? sent.tensor : Tensor(nullptr, DType::f32, {borders.back()});
    const auto ticket = transport.exchange(send, borders, received, contributes, stream());
    sent.set(std::vector<float>(values.size(), -2));  // the data have been sent
    int idle = 0;
    transport.wait(ticket, [&] { ++idle; });
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const std::vector<float> got = places[static_cast<size_t>(r)].get();
      for (int64_t e = 0; e < own; ++e) {
        const float expected = contributes[static_cast<size_t>(r)] != 0 ? value_of(r, borders[me] + e, set) : -1;
        ASSERT_EQ(got[static_cast<size_t>(e)], expected) << "of rank " << r << ", set " << set;
      }
    }
  }
}

TEST(StagedTransport, MessagesOfTwoRanksArriveInTheirOrder) {
  StagedTransport transport(MPI_COMM_WORLD);
  constexpr int64_t shortest = 5;  // messages of different lengths, two from each rank to each other one
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<Values> sent, places;
    std::vector<Communicator::Message> sends, receives;
    for (int other = 0; other < size(); ++other) {
      for (const int which : {0, 1}) {
        const int64_t count = shortest + which;
        sent.emplace_back(count);
        sent.back().set(std::vector<float>(static_cast<size_t>(count), value_of(rank(), 10 * other + which, turn)));
        places.emplace_back(count);
        if (other == rank()) continue;
        sends.push_back({sent.back().tensor, other});
        receives.push_back({places.back().tensor, other});
      }
    }
    const auto ticket = transport.send_and_receive(sends, receives, stream());
    for (const Values& values : sent) values.set(std::vector<float>(static_cast<size_t>(values.tensor.numel()), -2));
    transport.wait(ticket, {});
    for (int other = 0; other < size(); ++other) {
      for (const int which : {0, 1}) {
        if (other == rank()) continue;
        const std::vector<float> wanted(static_cast<size_t>(shortest + which),
                                        value_of(other, 10 * rank() + which, turn));
        EXPECT_EQ(places[static_cast<size_t>(2 * other + which)].get(), wanted) << other;
      }
    }
  }
}

// As when an error unwinds: the messages are still received, and later transfers are not affected.
TEST(StagedTransport, TransfersThatNobodyWaitsForDoNoHarm) {
  StagedTransport transport(MPI_COMM_WORLD);
  const std::vector<int64_t> borders = unequal_borders();
  std::vector<Values> buffers;
  for (int i = 0; i < 10; ++i) {
    buffers.emplace_back(borders.back());
    buffers.back().set(before_gather(borders, i));
  }
  for (const Values& buffer : buffers) transport.all_gather(buffer.tensor, borders, stream());
  const Values last(borders.back());
  last.set(before_gather(borders, 99));
  const auto ticket = transport.all_gather(last.tensor, borders, stream());
  transport.wait(ticket, {});
  expect_gathered(last, borders, 99);
  for (int i = 0; i < 6; ++i) expect_gathered(buffers[static_cast<size_t>(i)], borders, i);
  communicator().barrier();
}

}  // namespace
}  // namespace llmtrain
