#include "kernels/adamw_8bit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/params.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::Values;

constexpr int64_t chunks = 5, n = chunks * chunk_elements;

struct State {
  Array master{DType::f32, {n}, test::random_values(n, 1)}, m{DType::u8, {n}}, v{DType::u8, {n}};
  Array m_scale{DType::f32, {chunks}}, v_scale{DType::f32, {chunks}};
  Array gradient{DType::f32, {n}, test::random_values(n, 3, 1e-3)}, weights{DType::bf16, {n}};

  Adamw8bitTensors part(int64_t first, int64_t last) const {
    const auto of = [&](const Array& a, int64_t each) { return a.tensor().rows(first * each, (last - first) * each); };
    constexpr int64_t e = chunk_elements;
    return {of(master, e),  of(m, e), of(m_scale, 1),    of(v, e), of(v_scale, 1), of(gradient, e),
            of(weights, e), 0,        (last - first) * e};
  }
  std::vector<uint8_t> codes(const Array& of) const {
    const Bytes bytes = of.bytes();
    std::vector<uint8_t> all;
    for (const auto byte : bytes) all.push_back(static_cast<uint8_t>(byte));
    return all;
  }
  Bytes bytes() const {
    Bytes all;
    for (const Array* a : {&master, &m, &m_scale, &v, &v_scale, &weights}) {
      const Bytes more = a->bytes();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
};

AdamwStep step(int64_t t) { return {.learning_rate = 0.01, .weight_decay = 0.1, .step = t, .gradient_scale = 0.5}; }

TEST(Adamw8bit, AnyCutGivesTheSameBits) {
  const auto run = [](const std::vector<int64_t>& borders) {
    const State s;
    for (int64_t t = 1; t <= 3; ++t) {
      for (size_t b = 0; b + 1 < borders.size(); ++b) {
        adamw_8bit_update(s.part(borders[b], borders[b + 1]), step(t), test::stream());
      }
    }
    return s.bytes();
  };
  EXPECT_EQ(run({0, 1, 3, chunks}), run({0, chunks}));
  EXPECT_NE(run({0, chunks - 1}), run({0, chunks})) << "control: a chunk left out";
}

/// On every border, beside it, and on every level.
TEST(Adamw8bit, BordersOfCodesGiveTheNearestCode) {
  for (const DynamicMap* map : {&signed_dynamic_map, &unsigned_dynamic_map}) {
    DynamicMap borders{}, others{};
    for (int node = 1; node < 256; ++node) {
      borders[static_cast<size_t>(node)] = code_border(map->data(), node);
      others[static_cast<size_t>(node)] = std::nextafter(code_border(map->data(), node), 2.0F);
    }
    std::vector<float> values{-2, -1, -0.0F, 2, std::numeric_limits<float>::quiet_NaN()};
    for (size_t i = 0; i < map->size(); ++i) {
      for (const float x : {(*map)[i], borders[i]}) {
        for (const float to : {-2.0F, x, 2.0F}) values.push_back(std::nextafter(x, to));
      }
    }
    int different = 0;
    for (const float x : values) {
      EXPECT_EQ(nearest_code_of(borders.data(), x), nearest_code(map->data(), x)) << x;
      different += nearest_code_of(others.data(), x) != nearest_code(map->data(), x) ? 1 : 0;
    }
    EXPECT_GE(different, 128) << "control: borders in the next place";
  }
}

/// A GPU's offloaded state is updated on the host. Steps follow each other, so that codes of moments are read, too.
TEST(Adamw8bit, HostAndDeviceGiveTheSameBits) {
  const State s;
  Adamw8bitTensors device = s.part(0, chunks), host = device;
  device.decay_begin = host.decay_begin = 100;
  device.decay_end = host.decay_end = n - 300;
  std::vector<Bytes> memory;
  const std::vector<Tensor*> tensors{&host.master,  &host.m,        &host.m_scale, &host.v,
                                     &host.v_scale, &host.gradient, &host.weights};
  memory.reserve(tensors.size());
  for (Tensor* t : tensors) {
    Bytes& bytes = memory.emplace_back(static_cast<size_t>(t->bytes()));
    copy_to_host(bytes.data(), t->data, t->bytes(), test::stream());
    test::stream().synchronize();
    t->data = bytes.data();
  }
  const auto of_host = [&] {
    Bytes all;
    for (size_t i = 0; i < memory.size(); ++i) {
      if (tensors[i] != &host.gradient) all.insert(all.end(), memory[i].begin(), memory[i].end());
    }
    return all;
  };
  for (int64_t t = 1; t <= 4; ++t) {
    adamw_8bit_update(device, step(t), test::stream());
    EXPECT_NE(s.bytes(), of_host()) << "control: a step less";
    adamw_8bit_update_on_host(host, step(t));
    EXPECT_EQ(s.bytes(), of_host());
  }
}

/// Every code is the nearest one of the moments that fp32 arithmetic has after a first step.
TEST(Adamw8bit, CodesAreTheNearest) {
  const State s;
  const Values g = s.gradient.values();
  adamw_8bit_update(s.part(0, chunks), step(1), test::stream());
  const std::vector<uint8_t> m = s.codes(s.m), v = s.codes(s.v);
  const Values m_scale = s.m_scale.values(), v_scale = s.v_scale.values();
  int different = 0;
  for (size_t i = 0; i < g.size(); ++i) {
    const auto scaled = static_cast<float>(g[i] * 0.5), first = static_cast<float>(1 - 0.9) * scaled;
    const float second = static_cast<float>(1 - 0.999) * scaled * scaled;
    const size_t chunk = i / static_cast<size_t>(chunk_elements);
    EXPECT_EQ(v[i], nearest_code(unsigned_dynamic_map.data(), second / static_cast<float>(v_scale[chunk]))) << i;
    const uint8_t code = nearest_code(signed_dynamic_map.data(), first / static_cast<float>(m_scale[chunk]));
    EXPECT_TRUE(m[i] == code || (code == 127 && m[i] == 126)) << i;
    different +=
        static_cast<int>(nearest_code(unsigned_dynamic_map.data(), first / static_cast<float>(m_scale[chunk])) != m[i]);
  }
  EXPECT_GT(different, n / 2) << "control: an unsigned map";
}

TEST(Adamw8bit, KeepsTheSignOfTheFirstMoment) {
  const State s;
  Values g(static_cast<size_t>(n), 0.0);
  for (size_t i = 0; i < g.size(); i += 2) g[i] = i % 4 == 0 ? -1e-12 : 1e-12;  // far below the smallest level
  g[1] = 1;
  Array gradient(DType::f32, {n}, g);
  Adamw8bitTensors tensors = s.part(0, chunks);
  tensors.gradient = gradient;
  adamw_8bit_update(tensors, step(1), test::stream());
  const std::vector<uint8_t> codes = s.codes(s.m);
  EXPECT_EQ(codes[1], 255);
  EXPECT_EQ(codes[3], 127) << "zero stays zero";
  EXPECT_EQ(codes[4], 126) << "a negative one does not become zero";
  EXPECT_EQ(codes[2], 127) << "a positive one may: the bit of its sign is that of zero";
}

TEST(Adamw8bit, AGradientThatIsNotFiniteResetsItsMoments) {
  const State s;
  adamw_8bit_update(s.part(0, chunks), step(1), test::stream());
  const Values before = s.master.values();
  Values g = s.gradient.values();
  g[7] = std::numeric_limits<double>::infinity();
  g[8] = std::numeric_limits<double>::quiet_NaN();
  Array gradient(DType::f32, {n}, g);
  Adamw8bitTensors tensors = s.part(0, chunks);
  tensors.gradient = gradient;
  adamw_8bit_update(tensors, step(2), test::stream());
  const std::vector<uint8_t> m = s.codes(s.m), v = s.codes(s.v);
  const Values after = s.master.values();
  for (const size_t i : {7, 8}) {
    EXPECT_EQ(signed_dynamic_map[m[i]], 0.0F);
    EXPECT_EQ(unsigned_dynamic_map[v[i]], 0.0F);
    EXPECT_EQ(after[i], before[i]);
  }
  EXPECT_NE(after[9], before[9]) << "control";
}

}  // namespace
}  // namespace llmtrain
