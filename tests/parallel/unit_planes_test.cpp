// Values of planes by tensor, compared with a count chunk by chunk.

#include "params/unit_planes.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace llmtrain {
namespace {

/// Large tensors have a scale in each chunk, small ones a value for each element, those without decay nothing.
int64_t some_values(const ParamSpec& param, const ParamSlice& slice) {
  if (!param.decay) return 0;
  return slice.rows * param.columns >= 1000 ? 1 : chunk_elements;
}

ParamSpec matrix(const std::string& name, int64_t columns, const std::vector<int64_t>& rows) {
  ParamSpec p{name, 0, columns, columns > 1, Initializer::zeros(), {}};
  for (const int64_t n : rows) {
    p.slices.push_back({name + std::to_string(p.slices.size()), p.rows, n});
    p.rows += n;
  }
  return p;
}

class Planes : public testing::Test {
 protected:
  // The second matrix has slices that end within chunks; the third slice begins and ends in one.
  const UnitSpec spec{"unit",
                      {matrix("large", 20, {80}), matrix("fused", 30, {40, 3, 2, 50}), matrix("bias", 1, {600}),
                       matrix("small", 9, {90})}};
  const UnitLayout layout{spec};
  const StatePlanes states = {
      {"master"}, {"m", DType::u8}, {"m.scale", DType::f32, 1}, {"v", DType::f32, 0, some_values}};
  const UnitPlanes planes{states, spec, layout};

  /// A chunk belongs to the tensor that it begins in; behind the last one it is padding of the parameter's last.
  int64_t expected(int64_t chunk) const {
    const int64_t element = chunk * chunk_elements;
    int64_t values = 0, begin = -1;
    for (size_t p = 0; p < spec.params.size(); ++p) {
      for (const ParamSlice& slice : spec.params[p].slices) {
        const int64_t first = layout.offset(static_cast<int>(p)) + slice.first_row * spec.params[p].columns;
        if (first > element || first < begin) continue;
        begin = first;
        values = some_values(spec.params[p], slice);
      }
    }
    return values;
  }
};

TEST_F(Planes, HaveTheValuesOfTheirTensors) {
  const int64_t chunks = layout.elements() / chunk_elements;
  ASSERT_GT(chunks, 20);
  int64_t before = 0, kinds = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * chunk_elements, end = begin + chunk_elements;
    EXPECT_EQ(planes.values(3, 0, begin), before) << chunk;
    EXPECT_EQ(planes.values(3, begin, end), expected(chunk)) << chunk;
    EXPECT_EQ(planes.at(3, begin).per_chunk, expected(chunk)) << chunk;
    EXPECT_EQ(planes.bytes(3, begin, end), 4 * expected(chunk)) << chunk;
    before += expected(chunk);
    kinds |= expected(chunk) == 0 ? 1 : expected(chunk) == 1 ? 2 : 4;
  }
  EXPECT_EQ(kinds, 7) << "chunks of every kind";
  EXPECT_EQ(planes.values(0, 10, 30), 20) << "a value for each element: any range";
  EXPECT_EQ(planes.bytes(1, 0, 512), 512);
  EXPECT_EQ(planes.values(2, 256, 1024), 3);
  EXPECT_THROW(planes.values(3, 10, 256), Error);
}

TEST_F(Planes, RunsEndWhereTheNumberChanges) {
  for (int64_t at = 0; at < layout.elements();) {
    const int64_t end = planes.end_of_run(at, layout.elements());
    ASSERT_GT(end, at);
    for (int64_t element = at; element < end; element += chunk_elements) {
      EXPECT_EQ(expected(element / chunk_elements), expected(at / chunk_elements)) << element;
    }
    EXPECT_EQ(planes.end_of_run(at, at + chunk_elements), at + chunk_elements) << "not beyond the range";
    at = end;
  }
  const UnitPlanes by_element({{"master"}}, spec, layout);
  EXPECT_EQ(by_element.end_of_run(0, 4096), 4096);
}

}  // namespace
}  // namespace llmtrain
