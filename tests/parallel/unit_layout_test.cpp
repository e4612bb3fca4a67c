#include "params/unit_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.hpp"

namespace llmtrain {
namespace {

ParamSpec param(int64_t rows, int64_t columns, bool decay) {
  ParamSpec p;
  p.name = "p";
  p.rows = rows;
  p.columns = columns;
  p.decay = decay;
  p.slices = {{"p", 0, rows}};
  return p;
}

UnitSpec random_unit(std::mt19937& random) {
  UnitSpec unit{"unit", {}, false};
  const int count = std::uniform_int_distribution<int>(1, 9)(random);
  for (int i = 0; i < count; ++i) {
    const int64_t rows = std::uniform_int_distribution<int64_t>(1, 700)(random);
    const int64_t columns = std::uniform_int_distribution<int64_t>(1, 40)(random);
    unit.params.push_back(param(rows, columns, random() % 2 == 0));
  }
  return unit;
}

TEST(UnitLayout, PlacesDecayingTensorsFirstInOrder) {
  const UnitSpec unit{
      "block", {param(300, 1, false), param(4, 64, true), param(1, 1, false), param(10, 30, true)}, false};
  const UnitLayout layout(unit);
  EXPECT_EQ(layout.offset(1), 0);     // 256 elements
  EXPECT_EQ(layout.offset(3), 256);   // 300 -> 512
  EXPECT_EQ(layout.offset(0), 768);   // 300 -> 512
  EXPECT_EQ(layout.offset(2), 1280);  // 1 -> 256
  EXPECT_EQ(layout.elements(), 1536);
  ASSERT_EQ(layout.ranges().size(), 2u);
  EXPECT_TRUE(layout.ranges()[0].decay);
  EXPECT_EQ(layout.ranges()[0].end, 768);
  EXPECT_FALSE(layout.ranges()[1].decay);
  EXPECT_EQ(layout.ranges()[1].begin, 768);
}

TEST(UnitLayout, SlicesOfAQuantizedMatrixBeginWithAChunk) {
  ParamSpec fused = param(100, 9, true);  // 540, 180 and 180 elements
  fused.slices = {{"q", 0, 60}, {"k", 60, 20}, {"v", 80, 20}};
  UnitSpec unit{"block", {fused, param(3, 100, true)}};
  const UnitLayout dense(unit);
  EXPECT_EQ(dense.offset(0, 2), 720);
  EXPECT_EQ(dense.offset(1), 1024);
  unit.trained = false;
  unit.quantization = Quantization{};
  const UnitLayout layout(unit);
  EXPECT_EQ(layout.offset(0, 0), 0);
  EXPECT_EQ(layout.offset(0, 1), 768);
  EXPECT_EQ(layout.offset(0, 2), 1024);
  EXPECT_EQ(layout.offset(1), 1280);
  EXPECT_EQ(layout.elements(), 1792);
}

TEST(UnitLayout, RangesDivideWhereTheLearningRateDoesAndNothingMoves) {
  UnitSpec unit{"block", {param(1, 9, true), param(2, 300, true), param(300, 1, true), param(5, 1, false)}, false};
  const UnitLayout before(unit);
  unit.params[1].lr_scale = unit.params[2].lr_scale = unit.params[3].lr_scale = 16;
  const UnitLayout layout(unit);
  for (int p = 0; p < 4; ++p) EXPECT_EQ(layout.offset(p), before.offset(p));
  const std::vector<UnitRange>& ranges = layout.ranges();
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].lr_scale, 1);
  EXPECT_EQ(ranges[0].end, 256);
  EXPECT_EQ(ranges[1].lr_scale, 16);
  EXPECT_EQ(ranges[1].begin, 256);
  EXPECT_EQ(ranges[1].end, 256 + 768 + 512);
  EXPECT_FALSE(ranges[2].decay);
  EXPECT_EQ(ranges[2].lr_scale, 16);
  EXPECT_EQ(ranges[2].begin, ranges[1].end);
}

TEST(UnitLayout, FixedSlicesDoNotDecay) {
  UnitSpec unit{"block", {param(30, 9, true), param(2, 300, true)}, false};
  unit.params[0].slices = {{"q", 0, 10}, {"k", 10, 5}, {"v", 15, 15}};
  unit.params[0].slices[0].fixed = unit.params[0].slices[2].fixed = true;
  std::vector<int64_t> borders;
  std::vector<bool> decays;
  const UnitLayout layout(unit);
  for (const UnitRange& range : layout.ranges()) {
    borders.push_back(range.begin);
    decays.push_back(range.decay);
  }
  EXPECT_EQ(borders, (std::vector<int64_t>{0, 90, 135, 270}));
  EXPECT_EQ(decays, (std::vector<bool>{false, true, false, true}));
}

TEST(UnitLayout, SlicesAreVisitedInOrderWithTheirPlaces) {
  ParamSpec fused = param(100, 9, true);
  fused.slices = {{"q", 0, 60}, {"k", 60, 20}, {"v", 80, 20}};
  const std::vector<UnitSpec> units = {{"embedding", {param(2, 300, true)}}, {"block", {param(7, 1, false), fused}}};
  const std::vector<UnitLayout> layouts = layouts_of(units);
  std::vector<std::vector<int64_t>> visited;
  for_each_slice(units, [&](const SlicePlace& at, const ParamSpec& of, const ParamSlice& slice) {
    visited.push_back({at.unit, at.param, at.slice, at.offset(layouts), slice.rows * of.columns});
  });
  EXPECT_EQ(visited,
            (std::vector<std::vector<int64_t>>{
                {0, 0, 0, 0, 600}, {1, 0, 0, 1024, 7}, {1, 1, 0, 0, 540}, {1, 1, 1, 540, 180}, {1, 1, 2, 720, 180}}));
}

TEST(UnitLayout, TensorsAreAlignedAndDisjointAndRangesCoverTheUnit) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const UnitSpec unit = random_unit(random);
    const UnitLayout layout(unit);
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t p = 0; p < unit.params.size(); ++p) {
      const int64_t offset = layout.offset(static_cast<int>(p));
      EXPECT_EQ(offset % chunk_elements, 0);
      taken.emplace_back(offset, offset + unit.params[p].numel());
      const auto inside = [&](const UnitRange& r) {
        return r.begin <= offset && offset + unit.params[p].numel() <= r.end && r.decay == unit.params[p].decay;
      };
      EXPECT_TRUE(std::any_of(layout.ranges().begin(), layout.ranges().end(), inside));
    }
    std::sort(taken.begin(), taken.end());
    for (size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].second, taken[i].first);
    EXPECT_LE(taken.back().second, layout.elements());
    EXPECT_LT(layout.elements() - taken.back().second, chunk_elements);
    int64_t at = 0;
    for (const UnitRange& r : layout.ranges()) {
      EXPECT_EQ(r.begin, at);
      EXPECT_GT(r.end, r.begin);
      at = r.end;
    }
    EXPECT_EQ(at, layout.elements());
  }
}

TEST(UnitLayout, BordersAreWholeChunksAsEqualAsChunksAllow) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const UnitLayout layout(random_unit(random));
    const int64_t chunks = layout.elements() / chunk_elements;
    for (const int size : {1, 2, 3, 4, 5, 7, 8, 64, 1000}) {
      const std::vector<int64_t> borders = layout.borders(size);
      ASSERT_EQ(borders.size(), static_cast<size_t>(size) + 1);
      EXPECT_EQ(borders.front(), 0);
      EXPECT_EQ(borders.back(), layout.elements());
      for (int64_t r = 0; r < size; ++r) {
        const size_t i = static_cast<size_t>(r);
        EXPECT_EQ(borders[i], chunk_elements * (chunks * r / size));
        const int64_t own = (borders[i + 1] - borders[i]) / chunk_elements;
        EXPECT_GE(own, chunks / size);
        EXPECT_LE(own, chunks / size + 1);
      }
    }
  }
}

TEST(UnitLayout, SmallUnitsAreOneSegmentAndLargeOnesAreBlocksOfRowsAndRunsOfChunks) {
  UnitSpec unit{"block", {param(96, 64, true), param(300, 1, false), param(40, 64, true), param(7, 100, true)}, false};
  unit.params[0].by_rows = true;  // 6144 elements
  const int64_t all = UnitLayout(unit).elements();
  EXPECT_EQ(all, 6144 + 2560 + 768 + 512);
  EXPECT_EQ(UnitLayout(unit, all).segments(), (std::vector<int64_t>{0, all}));
  // 40 rows fit; two blocks of 40 would leave 16.
  EXPECT_EQ(UnitLayout(unit, 2560).segments(), (std::vector<int64_t>{0, 2048, 4096, 6144, 8192, 9984}));
  // A chunk is four rows, and no block is smaller.
  EXPECT_EQ(UnitLayout(unit, 100).segments().at(1), 256);
  EXPECT_EQ(UnitLayout(unit, 2560).borders(2),
            (std::vector<int64_t>{0, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 8960, 9984}));
}

// Sizes of a block of Llama 3 70B, and of its vocabulary.
TEST(UnitLayout, BlocksOfRowsBeginAtAlignedRowsAndHoldAtMost256MiB) {
  UnitSpec block{"block",
                 {param(10240, 8192, true), param(8192, 8192, true), param(57344, 8192, true), param(8192, 28672, true),
                  param(8192, 1, false), param(8192, 1, false)},
                 false};
  for (ParamSpec& p : block.params) p.by_rows = p.decay;
  const UnitLayout layout(block);
  const std::vector<int64_t>& ends = layout.segments();
  EXPECT_EQ(ends.size(), 2u + 2 + 1 + 7 + 4);
  for (size_t i = 1; i < ends.size(); ++i) {
    EXPECT_LE(ends[i] - ends[i - 1], default_segment_elements);
    for (int p = 0; p < 4; ++p) {
      const ParamSpec& matrix = block.params[static_cast<size_t>(p)];
      const int64_t from = ends[i] - layout.offset(p);
      if (from > 0 && from < matrix.numel()) {
        EXPECT_EQ(from % (128 * matrix.columns), 0);
      }
    }
  }
  const UnitLayout table({"embedding", {param(128256, 8192, true)}, false});
  EXPECT_EQ(table.segments().size(), 1u + 16);
}

TEST(UnitLayout, SegmentsCoverTheUnitAndDivideOnlyLargeOnes) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    UnitSpec unit = random_unit(random);
    for (ParamSpec& p : unit.params) p.by_rows = p.decay && random() % 2 == 0;
    const int64_t most = std::uniform_int_distribution<int64_t>(1, 30000)(random);
    const UnitLayout layout(unit, most);
    const std::vector<int64_t>& borders = layout.segments();
    EXPECT_EQ(borders.front(), 0);
    EXPECT_EQ(borders.back(), layout.elements());
    if (layout.elements() <= most) {
      EXPECT_EQ(borders.size(), 2u);
    }
    for (size_t i = 1; i < borders.size(); ++i) {
      EXPECT_LT(borders[i - 1], borders[i]);
      EXPECT_EQ(borders[i] % chunk_elements, 0);
      // Above the limit is at most a chunk, or the fewest rows that are whole chunks.
      EXPECT_LE(borders[i] - borders[i - 1], std::max(most, 40 * chunk_elements));
    }
    for (size_t p = 0; p < unit.params.size(); ++p) {
      const int64_t offset = layout.offset(static_cast<int>(p)), last = offset + unit.params[p].numel();
      if (borders.size() == 2 || !unit.params[p].by_rows) continue;
      EXPECT_TRUE(std::ranges::binary_search(borders, offset));
      for (const int64_t at : borders) {
        if (at > offset && at < last) {
          EXPECT_EQ((at - offset) % unit.params[p].columns, 0);
        }
      }
    }
  }
}

TEST(UnitLayout, RefusesShapesThatDoNotFit) {
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(UnitLayout({"u", {param(huge, 8, true)}, false}), Error);
  EXPECT_THROW(UnitLayout({"u", {param(0, 8, true)}, false}), Error);
  EXPECT_THROW(UnitLayout({"u", {param(8, -1, true)}, false}), Error);
  EXPECT_THROW(UnitLayout({"u", {param(8, 1, true)}, false}).borders(0), Error);
}

}  // namespace
}  // namespace llmtrain
