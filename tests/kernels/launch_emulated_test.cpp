// What kernels ask of a GPU when they start: the arithmetic that chooses grids and shared memory, on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/philox.hpp"
#include "emulator/emulator.hpp"
#include "harness/harness.hpp"
#include "kernels/attention_checks.hpp"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_shape.hpp"
#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {
namespace {

constexpr int64_t far = int64_t{1} << 40;

TEST(LaunchShape, LoopsHaveABlockForEveryItemUpToTheLargestGrid) {
  for (const int64_t items : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{1} << 24,
                              (int64_t{1} << 24) + 1, far}) {
    const Grid grid = loop_grid(items, 256);
    EXPECT_NO_THROW(check_grid(grid)) << items;
    EXPECT_TRUE(grid.x * 256 >= items || grid.x == max_loop_grid) << items;
    EXPECT_LT((grid.x - 1) * 256, std::max<int64_t>(items, 1)) << items;
    EXPECT_EQ(is_empty(grid), items == 0);
  }
}

TEST(LaunchShape, GridsThatNoGpuHasAreRefused) {
  EXPECT_NO_THROW(check_grid({max_grid_x, max_grid_y, max_grid_y}));
  EXPECT_THROW(check_grid({max_grid_x + 1, 1, 1}), Error);
  EXPECT_THROW(check_grid({1, max_grid_y + 1, 1}), Error);
  EXPECT_THROW(check_grid({1, 1, max_grid_y + 1}), Error);
  EXPECT_THROW(check_grid({-1, 1, 1}), Error);
}

struct Indices {
  std::vector<int64_t>* seen;
  void operator()(int64_t i) const { seen->push_back(i); }
};

// More elements than an int counts: every thread takes its own, at the distance of the whole grid.
TEST(LaunchShape, LoopsReachElementsBeyondTheRangeOfInt) {
  const int64_t count = (int64_t{1} << 33) + 77, stride = max_loop_grid * ForEach<Indices>::threads;
  std::vector<int64_t> seen;
  const ForEach<Indices> loop{count, {&seen}};
  gridDim = {static_cast<unsigned>(max_loop_grid), 1, 1};
  for (const auto& [block, thread] : {std::pair{0U, 0U}, {65535U, 255U}, {0U, 76U}, {0U, 77U}}) {
    blockIdx = {block, 0, 0};
    threadIdx = {thread, 0, 0};
    seen.clear();
    loop();
    std::vector<int64_t> expected;
    for (int64_t i = int64_t{block} * 256 + thread; i < count; i += stride) expected.push_back(i);
    EXPECT_EQ(seen, expected) << block << ", " << thread;
  }
}

// Offsets of rows in tensors of more than 2^31 elements.
TEST(LaunchShape, RowsOfLargeTensorsHaveOffsetsOf64Bits) {
  Batch batch;
  batch.tokens = int64_t{1} << 22;
  const AttentionShape shape{32, 8, 128, 0, 1, 0};
  int32_t borders[2] = {0, 1 << 22};
  batch.segments = Tensor(borders, DType::i32, {2});
  const auto base = reinterpret_cast<uintptr_t>(&batch);
  const Rows<bf16> rows(Tensor(&batch, DType::bf16, {batch.tokens, 48 * 128}), batch, shape, {});
  const int64_t row = batch.tokens - 1;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.query(row, 31)) - base, 2 * (row * 48 * 128 + 31 * 128));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.key(row, 7)) - base, 2 * (row * 48 * 128 + 39 * 128));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.value(row, 7)) - base, 2 * (row * 48 * 128 + 47 * 128));
}

struct Sharing {
  static constexpr int threads = warp_lanes;
  void operator()() const { dynamic_shared<unsigned>()[threadIdx.x] = threadIdx.x; }
};

// A launch that is recorded is none of a kernel's first.
TEST(Launch, AsksOnceForSharedMemory) {
  const auto questions = [](int bytes) {
    const int64_t before = emulator::counts().attributes;
    launch({1}, test::stream(), Sharing(), bytes);
    return emulator::counts().attributes - before;
  };
  EXPECT_EQ(questions(shared_bytes_granted), 0);
  for (const int bytes : {64 << 10, 80 << 10}) {
    EXPECT_EQ(questions(bytes), 1);
    EXPECT_EQ(questions(bytes), 0);
  }
  EXPECT_EQ(questions(64 << 10), 0) << "less than was asked for";
  test::stream().synchronize();
  Graph graph;
  graph.record(test::stream(), [&] { EXPECT_EQ(questions(80 << 10), 0); });
  graph.launch(test::stream());
  test::stream().synchronize();
  EXPECT_THROW(questions(100 << 10), Error);
}

TEST(AttentionShapes, EveryHeadFitsItsTileItsRegistersAndTheSharedMemoryOfAnyGpu) {
  const int64_t granted = shared_bytes_of_block(0);
  for (int64_t head_dim = 1; head_dim <= max_head_dim; ++head_dim) {
    EXPECT_GE(row_registers(head_dim) * warp_lanes, head_dim);
    for (const int64_t size : {4, 8}) {
      const int lanes = row_lanes(head_dim, size);
      EXPECT_EQ(warp_lanes % lanes, 0) << head_dim;
      EXPECT_TRUE(lanes == warp_lanes || lanes * size >= head_dim) << head_dim;
      EXPECT_TRUE(lanes == 1 || lanes / 2 * size < head_dim) << head_dim;
    }
    for (const auto& [rows, weights] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
      EXPECT_LE(row_shared_bytes(head_dim, rows, weights), granted) << head_dim;
    }
    if (head_dim > max_tiled) continue;
    const int columns = tile_columns(head_dim);
    EXPECT_GE(columns, head_dim);
    EXPECT_EQ(columns % 32, 0);
    EXPECT_EQ(tile_stride(columns) * 2 % 16, 0) << "rows of a tile are read 16 bytes at a time";
    EXPECT_LE(tiled_shared_bytes(columns), granted) << head_dim;
    EXPECT_LE(tiled_query_shared_bytes(columns), granted) << head_dim;
    EXPECT_LE(tiled_key_shared_bytes(columns), granted) << head_dim;
  }
  static_assert(shared_bytes_of_block(80) == 166912 && shared_bytes_of_block(90) == 232448);
}

TEST(AttentionShapes, GridsHaveATileForEveryPartOfEverySegment) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    int64_t tokens = 0, tiles = 0;
    const int64_t segments = 1 + static_cast<int64_t>(random_bits(seed, 1, 0) % 9);
    for (int64_t s = 0; s < segments; ++s) {
      const int64_t length = 1 + static_cast<int64_t>(random_bits(seed, 2, static_cast<uint64_t>(s)) % 200);
      tokens += length;
      tiles += blocks_for(length, tile_rows);
    }
    const Grid grid = tile_grid(tokens, segments, 3);
    EXPECT_GE(grid.x, tiles);
    EXPECT_LE(grid.x, tiles + segments);
  }
  // The largest batch that int32 borders can describe, and all heads.
  EXPECT_NO_THROW(check_grid(tile_grid(INT32_MAX, INT32_MAX / 2, max_heads)));
  EXPECT_NO_THROW(check_grid(row_grid(INT32_MAX, max_heads)));
  EXPECT_THROW(check_grid(row_grid(INT32_MAX, max_heads + 1)), Error);
}

}  // namespace
}  // namespace llmtrain::cuda
