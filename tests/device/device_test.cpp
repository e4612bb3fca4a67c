#include "device/device.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "harness/harness.hpp"

namespace llmtrain {
namespace {

std::vector<unsigned char> pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned char> v(bytes);
  for (size_t i = 0; i < bytes; ++i) v[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 7);
  return v;
}

std::vector<unsigned char> contents(const DeviceBuffer& buffer) {
  std::vector<unsigned char> v(static_cast<size_t>(buffer.bytes()));
  copy_to_host(v.data(), buffer.data(), buffer.bytes(), test::stream());
  test::stream().synchronize();
  return v;
}

TEST(DeviceBuffer, IsAlignedAndZero) {
  for (int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{3} << 20}) {
    const DeviceBuffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(contents(buffer), std::vector<unsigned char>(static_cast<size_t>(bytes), 0));
  }
  EXPECT_EQ(DeviceBuffer(0).data(), nullptr);
}

TEST(DeviceBuffer, CopiesAndFills) {
  for (size_t bytes : {size_t{0}, size_t{5}, (size_t{1} << 18) + 3, size_t{5} << 20}) {
    const std::vector<unsigned char> source = pattern(bytes, 1);
    const DeviceBuffer a(static_cast<int64_t>(bytes));
    const DeviceBuffer b(static_cast<int64_t>(bytes));
    copy_to_device(a.data(), source.data(), a.bytes(), test::stream());
    copy_on_device(b.data(), a.data(), a.bytes(), test::stream());
    EXPECT_EQ(contents(b), source);
    if (bytes > 1) {
      EXPECT_NE(contents(b), pattern(bytes, 2));
      fill_zero(b.data(), b.bytes() - 1, test::stream());
      std::vector<unsigned char> expected(bytes, 0);
      expected.back() = source.back();
      EXPECT_EQ(contents(b), expected);
    }
  }
}

TEST(DeviceBuffer, IsInTheMemoryOfTheProcess) {
  constexpr int64_t bytes = int64_t{128} << 20, slack = bytes / 8;  // pages shared with other tests, which come and go
  for (const int64_t processes : {1, 2}) {
    const int64_t before = device_process_bytes(processes);
    EXPECT_GE(before, device_memory_is_host() ? 1 : device_context_bytes(processes));
    int64_t with_buffer = 0;
    {
      const DeviceBuffer buffer(bytes);
      with_buffer = device_process_bytes(processes);
    }
    EXPECT_GE(with_buffer - before, bytes - slack) << processes;
    EXPECT_GE(with_buffer - device_process_bytes(processes), bytes - slack) << processes;
  }
}

TEST(DeviceBuffer, MovesItsMemory) {
  DeviceBuffer a(1000);
  void* data = a.data();
  DeviceBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.bytes(), 1000);
  DeviceBuffer c(10);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.bytes(), 1000);
}

TEST(DeviceBuffer, RefusesMoreThanThereIs) {
  try {
    const DeviceBuffer buffer(std::numeric_limits<int64_t>::max() / 2);
    FAIL() << "an impossible size was accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos) << error.what();
  }
  EXPECT_THROW(DeviceBuffer(-1), Error);
}

TEST(Device, DescribesItself) {
  EXPECT_TRUE(std::string(device_kind()) == "host" || std::string(device_kind()) == "cuda");
  EXPECT_FALSE(device_description().empty());
  const DeviceMemory memory = device_memory();
  EXPECT_GT(memory.available, 0);
  EXPECT_GE(memory.total, memory.available);
}

TEST(PinnedBuffer, IsZeroAndGoesToTheDeviceAndBack) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{3} << 20}) {
    PinnedBuffer out(bytes), back(bytes);
    const std::vector<unsigned char> source = pattern(static_cast<size_t>(bytes), 3);
    auto* data = static_cast<unsigned char*>(out.data());
    EXPECT_EQ(std::vector<unsigned char>(data, data + bytes), std::vector<unsigned char>(source.size(), 0));
    std::memcpy(data, source.data(), source.size());
    const DeviceBuffer device(bytes);
    copy_to_device(device.data(), out.data(), bytes, test::stream());
    copy_to_host(back.data(), device.data(), bytes, test::stream());
    Event copied;
    copied.record(test::stream());
    copied.synchronize();
    EXPECT_TRUE(copied.reached());
    EXPECT_EQ(std::memcmp(back.data(), source.data(), source.size()), 0);
    const PinnedBuffer moved(std::move(back));
    EXPECT_EQ(moved.bytes(), bytes);
    // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): the moved-from state is under test
    EXPECT_EQ(back.bytes(), 0);
  }
  EXPECT_EQ(PinnedBuffer(0).data(), nullptr);
}

TEST(Event, OneThatWasNeverRecordedIsReached) {
  Event event;
  EXPECT_TRUE(event.reached());
  event.synchronize();
}

}  // namespace
}  // namespace llmtrain
