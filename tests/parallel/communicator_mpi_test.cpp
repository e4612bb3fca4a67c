#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "core/profile.hpp"
#include "harness/harness.hpp"
#include "parallel/communicator.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/mpi_transfer.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

/// A flat fp32 tensor on the device with host access by copies.
class Floats {
 public:
  explicit Floats(const std::vector<float>& values)
      : buffer_(static_cast<int64_t>(std::max<size_t>(values.size(), 1) * sizeof(float))),
        tensor(buffer_.data(), DType::f32, {static_cast<int64_t>(values.size())}) {
    copy_to_device(tensor.data, values.data(), tensor.bytes(), stream());
    stream().synchronize();
  }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<size_t>(tensor.numel()));
    copy_to_host(out.data(), tensor.data, tensor.bytes(), stream());
    stream().synchronize();
    return out;
  }

 private:
  DeviceBuffer buffer_;

 public:
  Tensor tensor;
};

float value_of(int rank, int64_t element) { return static_cast<float>(rank * 10000 + element); }

/// Borders of very unequal shards, some of them empty.
std::vector<int64_t> uneven_borders(int size) {
  std::vector<int64_t> borders = {0};
  for (int r = 0; r < size; ++r) borders.push_back(borders.back() + (r == 1 ? 0 : 256 * (r * r + 1)));
  return borders;
}

/// Borders of one segment, or of several.
int owner_of(const std::vector<int64_t>& borders, int64_t element) {
  int range = 0;
  while (element >= borders[static_cast<size_t>(range) + 1]) ++range;
  return range % communicator().size();
}

TEST(Communicator, KnowsItsPlace) {
  Communicator& c = communicator();
  EXPECT_GE(c.rank(), 0);
  EXPECT_LT(c.rank(), c.size());
  // One machine, which tests may split into nodes.
  const char* given = std::getenv("LLMTRAIN_RANKS_PER_NODE");
  const int per_node = given == nullptr ? c.size() : std::atoi(given), first = c.rank() / per_node * per_node;
  EXPECT_EQ(c.node_count(), (c.size() + per_node - 1) / per_node);
  EXPECT_EQ(c.node_size(), std::min(per_node, c.size() - first));
  EXPECT_EQ(c.node_rank(), c.rank() - first);
}

TEST(Communicator, AllGatherFillsEveryShardOfEverySegment) {
  Communicator& c = communicator();
  std::vector<int64_t> borders = uneven_borders(c.size());
  const std::vector<int64_t> first = borders;
  for (size_t i = 1; i < first.size(); ++i) borders.push_back(first.back() + first[i]);
  std::vector<float> values(static_cast<size_t>(borders.back()), -1);
  for (int64_t i = 0; i < borders.back(); ++i) {
    if (owner_of(borders, i) == c.rank()) values[static_cast<size_t>(i)] = value_of(c.rank(), i);
  }
  const Floats buffer(values);
  Transfer transfer = c.all_gather(buffer.tensor, borders, stream());
  transfer.wait(stream());
  transfer.wait(stream());
  EXPECT_FALSE(transfer.pending());
  const std::vector<float> got = buffer.values();
  for (int64_t i = 0; i < borders.back(); ++i) {
    ASSERT_EQ(got[static_cast<size_t>(i)], value_of(owner_of(borders, i), i)) << "element " << i;
  }
}

struct Received {
  std::vector<Floats> places;
  std::vector<Tensor> tensors;
};

Received places_for(const std::vector<int64_t>& borders, int rank, int size) {
  Received received;
  const size_t own = static_cast<size_t>(borders[static_cast<size_t>(rank) + 1] - borders[static_cast<size_t>(rank)]);
  for (int r = 0; r < size; ++r) received.places.emplace_back(std::vector<float>(own, -1));
  for (const Floats& place : received.places) received.tensors.push_back(place.tensor);
  received.tensors[static_cast<size_t>(rank)] = Tensor();
  return received;
}

TEST(Communicator, ExchangeBringsTheOwnRangeOfEveryContributor) {
  Communicator& c = communicator();
  const std::vector<int64_t> borders = uneven_borders(c.size());
  // Every set of contributors, two exchanges in progress at once.
  for (int set = 0; set + 1 < 1 << c.size(); ++set) {
    std::array<std::vector<uint8_t>, 2> contributes;
    std::array<Received, 2> received;
    std::vector<Floats> sent;
    std::array<Transfer, 2> transfers;
    for (size_t i = 0; i < 2; ++i) {
      for (int r = 0; r < c.size(); ++r) contributes[i].push_back(((set + static_cast<int>(i)) >> r & 1) != 0);
      std::vector<float> values(static_cast<size_t>(borders.back()));
      for (size_t e = 0; e < values.size(); ++e) {
        values[e] = value_of(c.rank(), static_cast<int64_t>(e)) + 0.25f * static_cast<float>(i);
      }
      sent.emplace_back(values);
      received[i] = places_for(borders, c.rank(), c.size());
      const Tensor send = contributes[i][static_cast<size_t>(c.rank())] != 0
                              ? sent[i].tensor
                              : Tensor(nullptr, DType::f32, {borders.back()});
      transfers[i] = c.exchange_shards(send, borders, received[i].tensors, contributes[i], stream());
    }
    for (size_t i = 0; i < 2; ++i) {
      transfers[i].wait(stream());
      for (int r = 0; r < c.size(); ++r) {
        if (r == c.rank()) continue;
        const std::vector<float> got = received[i].places[static_cast<size_t>(r)].values();
        for (size_t e = 0; e < got.size(); ++e) {
          const int64_t element = borders[static_cast<size_t>(c.rank())] + static_cast<int64_t>(e);
          const float expected =
              contributes[i][static_cast<size_t>(r)] != 0 ? value_of(r, element) + 0.25f * static_cast<float>(i) : -1;
          ASSERT_EQ(got[e], expected) << "from rank " << r << ", element " << element;
        }
      }
    }
  }
}

/// Memory of this rank that the others of its node read; none if each is alone.
class Shared : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_memory_is_host()) GTEST_SKIP() << "GPUs read each other's memory through NCCL";
    if (test::ranks_with_shared_memory() == 1 && communicator().adding_ranks_per_node() <= 1) {
      shares = false;
      memory = std::make_unique<Floats>(std::vector<float>(static_cast<size_t>(elements)));
      data = memory->tensor;
      return;
    }
    window = communicator().allocate_shared(elements * 4);
    data = Tensor(window.get(), DType::f32, {elements});
  }
  void fill(float base) const {
    for (int64_t i = 0; i < elements; ++i) data.as<float>()[i] = base + value_of(communicator().rank(), i);
  }

  const std::vector<int64_t> borders = uneven_borders(communicator().size());
  const int64_t elements = borders.back();
  bool shares = true;
  std::shared_ptr<void> window;
  std::unique_ptr<Floats> memory;
  Tensor data;
};

TEST_F(Shared, MemoryIsZeroAlignedAndHandedOutAgain) {
  if (!shares) GTEST_SKIP() << "no memory is shared here";
  Communicator& c = communicator();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(window.get()) % 64, 0u);
  for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(data.as<float>()[i], 0);
  for (int r = 0; r < c.size(); ++r) {
    const bool same_node = r >= c.rank() - c.node_rank() && r < c.rank() - c.node_rank() + c.node_size();
    EXPECT_EQ(c.reads_directly(r), same_node && r != c.rank());
  }
  fill(1);
  void* before = window.get();
  const std::shared_ptr<void> more = c.allocate_shared(elements * 4);
  EXPECT_NE(more.get(), before);
  window.reset();
  const std::shared_ptr<void> again = c.allocate_shared(elements);
  EXPECT_EQ(again.get(), before);
  for (int64_t i = 0; i < elements / 4; ++i) ASSERT_EQ(static_cast<float*>(before)[i], 0);
}

// Repeated, so that a rank that changes its buffer too early is detected.
TEST_F(Shared, GathersFillEveryShardManyTimes) {
  Communicator& c = communicator();
  const auto own_begin = borders[static_cast<size_t>(c.rank())], own_end = borders[static_cast<size_t>(c.rank()) + 1];
  for (int turn = 0; turn < 200; ++turn) {
    for (int64_t i = own_begin; i < own_end; ++i)
      data.as<float>()[i] = static_cast<float>(turn) + value_of(c.rank(), i);
    Transfer transfer = c.all_gather(data, borders, stream());
    if (turn % 2 == 0) transfer.wait(stream());
    transfer.finish(stream());
    EXPECT_FALSE(transfer.pending() || transfer.is_read());
    for (int64_t i = 0; i < elements; ++i) {
      ASSERT_EQ(data.as<float>()[i], static_cast<float>(turn) + value_of(owner_of(borders, i), i)) << "turn " << turn;
    }
  }
}

TEST_F(Shared, ExchangesGiveThePiecesOfContributorsManyTimes) {
  Communicator& c = communicator();
  const auto me = static_cast<size_t>(c.rank());
  const int64_t own = borders[me + 1] - borders[me];
  Received received = places_for(borders, c.rank(), c.size());
  for (int r = 0; r < c.size(); ++r) {
    if (c.reads_directly(r)) received.tensors[static_cast<size_t>(r)] = Tensor();
  }
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<uint8_t> contributes(static_cast<size_t>(c.size()));
    for (int r = 0; r < c.size(); ++r) contributes[static_cast<size_t>(r)] = (turn + r) % 3 != 0 ? 1 : 0;
    fill(static_cast<float>(turn));
    const Tensor send = contributes[me] != 0 ? data : Tensor(nullptr, DType::f32, {elements});
    Transfer transfer = c.exchange_shards(send, borders, received.tensors, contributes, stream());
    int idle = 0;
    transfer.wait(stream(), [&] { ++idle; });
    for (int r = 0; r < c.size(); ++r) {
      const auto i = static_cast<size_t>(r);
      if (contributes[i] == 0 || i == me) continue;
      const void* piece = transfer.contribution(r);
      EXPECT_EQ(piece != nullptr, c.reads_directly(r));
      if (own == 0) continue;
      const auto* values = static_cast<const float*>(piece != nullptr ? piece : received.tensors[i].data);
      for (int64_t e = 0; e < own; ++e) {
        ASSERT_EQ(values[e], static_cast<float>(turn) + value_of(r, borders[me] + e)) << "turn " << turn;
      }
    }
    transfer.release();
    transfer.release();
    transfer.finish(stream());
  }
}

// What ranks of a node share is read whole, and messages go from rank to rank.
TEST_F(Shared, ReductionsByNodeReadNeighboursAndSendMessages) {
  Communicator& c = communicator();
  if (c.adding_ranks_per_node() <= 1) GTEST_SKIP() << "no memory is shared here";
  const auto me = static_cast<size_t>(c.rank());
  const int to = (c.rank() + 1) % c.size(), from = (c.rank() + c.size() - 1) % c.size();
  const Floats place(std::vector<float>(static_cast<size_t>(elements)));
  for (int turn = 0; turn < 50; ++turn) {
    std::vector<uint8_t> contributes(static_cast<size_t>(c.size()));
    for (int r = 0; r < c.size(); ++r) contributes[static_cast<size_t>(r)] = (turn + r) % 3 != 0 ? 1 : 0;
    fill(static_cast<float>(turn));
    const Tensor mine = contributes[me] != 0 ? data : Tensor(nullptr, DType::f32, {elements});
    Transfer shared = c.share_in_node(mine, contributes);
    shared.wait(stream());
    for (int r = 0; r < c.size(); ++r) {
      const auto* values = static_cast<const float*>(shared.contribution(r));
      ASSERT_EQ(values != nullptr, contributes[static_cast<size_t>(r)] != 0 && c.reads_directly(r));
      for (int64_t e = 0; values != nullptr && e < elements; ++e) {
        ASSERT_EQ(values[e], static_cast<float>(turn) + value_of(r, e)) << "turn " << turn;
      }
    }
    shared.release();
    const std::vector<Communicator::Message> sends = {{data, to}}, receives = {{place.tensor, from}};
    Transfer messages = c.send_and_receive(sends, receives, stream());
    messages.wait(stream());
    for (int64_t e = 0; e < elements; ++e) {
      ASSERT_EQ(place.tensor.as<float>()[e], static_cast<float>(turn) + value_of(from, e)) << "turn " << turn;
    }
    messages.finish(stream());
    shared.finish(stream());
  }
}

// More transfers at once than the board has entries, waited for in a different order than started.
TEST_F(Shared, TransfersFinishInAnyOrder) {
  Communicator& c = communicator();
  fill(0);
  for (int turn = 0; turn < 100; ++turn) {
    std::array<Transfer, 5> transfers;
    for (Transfer& transfer : transfers) transfer = c.all_gather(data, borders, stream());
    for (int i = 4; i >= 0; --i) transfers[static_cast<size_t>(i)].wait(stream());
    for (const int i : {2, 0, 4, 1, 3}) transfers[static_cast<size_t>(i)].finish(stream());
  }
  for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(data.as<float>()[i], value_of(owner_of(borders, i), i));
}

// A shard from another node reaches the node's ranks by one of them, also if that one first waits for all ranks.
TEST_F(Shared, ShardsAreForwardedBeforeARankWaitsForAll) {
  Communicator& c = communicator();
  if (!shares) GTEST_SKIP() << "no memory is shared here";
  for (const bool asks : {false, true}) {
    for (int first = 0; first < c.size(); ++first) {
      fill(0);
      const auto meet = [&] { asks ? static_cast<void>(c.sharing_refusal(1)) : c.barrier(); };
      Transfer transfer = c.all_gather(data, borders, stream());
      if (c.rank() == first) meet();
      transfer.wait(stream());
      if (c.rank() != first) meet();
      transfer.finish(stream());
      for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(data.as<float>()[i], value_of(owner_of(borders, i), i));
    }
  }
}

TEST_F(Shared, OtherBuffersAreRefusedInExchanges) {
  if (!shares || communicator().node_count() > 1) GTEST_SKIP() << "ranks without shared memory would wait";
  const Floats elsewhere(std::vector<float>(static_cast<size_t>(elements)));
  const std::vector<Tensor> nowhere(static_cast<size_t>(communicator().size()));
  std::vector<uint8_t> alone(static_cast<size_t>(communicator().size()));
  alone[static_cast<size_t>(communicator().rank())] = 1;  // on every rank: all number the transfer and none waits
  EXPECT_THROW(communicator().exchange_shards(elsewhere.tensor, borders, nowhere, alone, stream()), Error);
}

// While a profiler waits for the device before a time stamp, waiting must not open spans.
TEST(Communicator, ProfilesHaveATransferOnceWhereItBeginsAndOnceWhereItIsWaitedFor) {
  Communicator& c = communicator();
  const Floats buffer(std::vector<float>(static_cast<size_t>(c.size()) * 256));
  std::vector<int64_t> borders;
  for (int64_t r = 0; r <= c.size(); ++r) borders.push_back(256 * r);
  c.barrier();
  Recorder recorder;
  recorder.start([] { stream().synchronize(); });
  if (c.rank() + 1 == c.size()) std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the others wait
  c.all_gather(buffer.tensor, borders, stream()).finish(stream());
  stream().synchronize();
  recorder.stop();
  EXPECT_LE(recorder.spans.size(), 2U);
  for (const Span& span : recorder.spans) {
    EXPECT_EQ(span.kind, SpanKind::communication);
    EXPECT_EQ(span.parent, -1);
    EXPECT_GE(span.end, span.begin);
    EXPECT_EQ(span.sequence, recorder.posts.front().sequence);
  }
}

TEST(Communicator, SaysWhyMemoryCannotBeShared) {
  if (!device_memory_is_host()) GTEST_SKIP() << "GPUs share no memory in this way";
  Communicator& c = communicator();
  const std::string refusal = c.sharing_refusal(int64_t{1} << 50);
  if (c.node_count() == c.size()) {
    EXPECT_EQ(refusal, "");
  } else {
    EXPECT_NE(refusal.find("/dev/shm"), std::string::npos) << refusal;
  }
}

TEST(Communicator, RefusesBordersAndPlacesThatDoNotFit) {
  Communicator& c = communicator();
  const Floats buffer(std::vector<float>(256));
  std::vector<int64_t> borders(static_cast<size_t>(c.size()) + 1, 0);
  borders.back() = 512;
  EXPECT_THROW(c.all_gather(buffer.tensor, borders, stream()), Error);
  borders.pop_back();
  EXPECT_THROW(c.all_gather(buffer.tensor, borders, stream()), Error);
  if (c.size() == 1) return;
  std::vector<int64_t> whole(static_cast<size_t>(c.size()) + 1);
  for (size_t r = 0; r < whole.size(); ++r) whole[r] = static_cast<int64_t>(r) * 8;
  const std::vector<Tensor> nowhere(static_cast<size_t>(c.size()));
  const std::vector<uint8_t> all(static_cast<size_t>(c.size()), 1);
  EXPECT_THROW(c.exchange_shards(buffer.tensor, whole, nowhere, all, stream()), Error);
}

// Pieces of 7 bytes stand in for those of 512 MiB.
TEST(MpiTransfer, CutsAndJoinsAnySize) {
  Communicator& c = communicator();
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{6}, size_t{7}, size_t{8}, size_t{1000}}) {
    std::string mine(bytes, '\0'), got(bytes, '?');
    for (size_t i = 0; i < bytes; ++i) mine[i] = static_cast<char>('a' + (i + static_cast<size_t>(c.rank())) % 26);
    MpiRequests requests(MPI_COMM_WORLD, 7);
    requests.receive(got.data(), static_cast<int64_t>(bytes), previous, 3);
    requests.send(mine.data(), static_cast<int64_t>(bytes), next, 3);
    requests.wait();
    EXPECT_TRUE(requests.test());
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(got[i], static_cast<char>('a' + (i + static_cast<size_t>(previous)) % 26));
    }
    std::string text = c.rank() == 0 ? mine : std::string(bytes, '?');
    mpi_broadcast(text.data(), static_cast<int64_t>(bytes), 0, MPI_COMM_WORLD, 7);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(text[i], static_cast<char>('a' + i % 26));
  }
  std::vector<int64_t> numbers(100);
  std::iota(numbers.begin(), numbers.end(), 0);
  mpi_all_reduce(numbers, MPI_SUM, MPI_COMM_WORLD, 24);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int64_t>(i) * c.size());
}

TEST(MpiTransfer, ErrorsAreReturnedAndThrown) {
  MpiRequests requests(MPI_COMM_WORLD);
  char byte = 0;
  EXPECT_THROW(requests.send(&byte, 1, communicator().size(), 0), Error);
}

TEST(RaiseTogether, EveryRankThrowsTheMessagesOfAllOnce) {
  Communicator& c = communicator();
  throw_on_all_ranks(c, [] {});
  try {
    throw_on_all_ranks(c, [&] {
      if (c.rank() == c.size() - 1) throw UserError(ExitCode::missing_input, "a file is missing");
      throw UserError(ExitCode::bad_content, "the same on many ranks");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::missing_input);
    EXPECT_EQ(std::string(error.what()),
              c.size() == 1 ? "a file is missing" : "the same on many ranks\na file is missing");
  }
  EXPECT_THROW(throw_on_all_ranks(c,
                                  [&] {
                                    if (c.rank() == 0) throw UserError(ExitCode::deck, "");
                                  }),
               UserError);
}

// Ranks of odd and even numbers are groups, which gather apart and know their numbers in the job.
TEST(Communicator, GroupsMoveTensorsAmongTheirRanks) {
  Communicator& job = communicator();
  const int number = job.rank() % 2;
  Communicator& group = job.group(number);
  ASSERT_EQ(group.size(), (job.size() + 1 - number) / 2);
  EXPECT_EQ(group.rank(), job.rank() / 2);
  std::vector<int64_t> borders(static_cast<size_t>(group.size()) + 1);
  std::iota(borders.begin(), borders.end(), int64_t{0});
  std::vector<float> own(static_cast<size_t>(group.size())), expected(own.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    EXPECT_EQ(group.job_rank(rank), 2 * rank + number);
    expected[static_cast<size_t>(rank)] = static_cast<float>(100 + group.job_rank(rank));
  }
  own[static_cast<size_t>(group.rank())] = static_cast<float>(100 + job.rank());
  const Floats buffer(own);
  group.all_gather(buffer.tensor, borders, stream()).finish(stream());
  EXPECT_EQ(buffer.values(), expected);
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  const Floats mine({static_cast<float>(job.rank())}), received({-1.0F});
  if (group.size() > 1) {
    const Communicator::Message send{mine.tensor, next}, receive{received.tensor, before};
    group.send_and_receive({&send, 1}, {&receive, 1}, stream()).finish(stream());
    EXPECT_EQ(received.values().front(), static_cast<float>(group.job_rank(before)));
  }
  EXPECT_EQ(sum_of_ranks(group, job.rank()),
            std::accumulate(expected.begin(), expected.end(), int64_t{0}) - 100 * group.size());
}

}  // namespace
}  // namespace llmtrain
