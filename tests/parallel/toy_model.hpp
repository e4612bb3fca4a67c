#pragma once
// A model without mathematics: units of awkward sizes, gradients that are a hash of (step, group, micro-batch, element)
// and differ wildly in size, so that every order of additions gives different bits; and its training on plain vectors.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/params.hpp"
#include "core/philox.hpp"

namespace llmtrain::test {

/// Settings that determine the result.
struct ToyRun {
  bool tied = true;
  int64_t groups = 1;
  int64_t blocks = 1;
  bool tree = false;
  int64_t micro_batches = 1;  ///< per group
  int64_t steps = 2;          ///< the last one has one group fewer
  uint64_t seed = 1;
  bool reversed = false;       ///< control: groups are added from the last to the first
  int64_t flipped_group = -1;  ///< control: one element of this group's gradient differs in one bit
};

/// Flat elements of one parameter.
using Values = std::vector<float>;
/// [unit][parameter]
using Parameters = std::vector<std::vector<Values>>;

inline ParamSpec param(std::string name, int64_t rows, int64_t columns) {
  ParamSpec p;
  p.name = std::move(name);
  p.rows = rows;
  p.columns = columns;
  p.decay = columns > 1;
  p.slices = {{p.name, 0, rows}};
  return p;
}

inline int64_t groups_of(const ToyRun& run, int64_t step) {
  return step + 1 == run.steps && run.groups > 1 ? run.groups - 1 : run.groups;
}

/// Origin of a gradient element. A tied table is written twice: by the head, then by the embedding.
struct Source {
  int64_t step, group, micro_batch;
  int unit, param;
  int part;
};

/// A random mantissa times a power of two between 2^-12 and 2^11.
inline float gradient_element(const ToyRun& run, const Source& s, int64_t element) {
  const uint64_t where = static_cast<uint64_t>(((s.step * 64 + s.group) * 8 + s.micro_batch) * 8 + s.part) * 4096 +
                         static_cast<uint64_t>(s.unit * 64 + s.param);
  const Philox4 r = philox4x32(run.seed, where, static_cast<uint64_t>(element));
  const float mantissa = static_cast<float>(static_cast<int32_t>(r.v[0])) / 2147483648.0f;
  float value = std::ldexp(mantissa, static_cast<int>(r.v[1] % 24) - 12);
  if (s.group == run.flipped_group && s.unit == 1 && s.param == 1 && element == 5) {
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (1u << 20));
  }
  return value;
}

inline Values gradient_values(const ToyRun& run, const Source& s, int64_t count) {
  Values values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = gradient_element(run, s, i);
  return values;
}

inline void add(Values& to, const Values& from, bool first) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = first ? from[i] : to[i] + from[i];
}

/// One element's update; not inlined, so that both trainers round alike.
[[gnu::noinline]] inline void update(float& p, float& m, float& v, float g) {
  m = 0.75f * m + g;
  v = 0.5f * v + g * g;
  p -= 0.125f * m / (1.0f + std::sqrt(v));
}

inline float initial_value(int unit, int p, int64_t element) {
  return static_cast<float>(unit + 1) + static_cast<float>(p) * 0.125f + static_cast<float>(element % 1000) * 0.001f;
}

inline Parameters initial_parameters(const std::vector<UnitSpec>& units) {
  Parameters all;
  for (size_t u = 0; u < units.size(); ++u) {
    all.emplace_back();
    for (size_t p = 0; p < units[u].params.size(); ++p) {
      Values values(static_cast<size_t>(units[u].params[p].numel()));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = initial_value(static_cast<int>(u), static_cast<int>(p), static_cast<int64_t>(i));
      }
      all.back().push_back(std::move(values));
    }
  }
  return all;
}

/// True if this parameter of this unit has a gradient from the head as well.
inline bool written_twice(const ToyRun& run, int unit, int p) { return run.tied && unit == 0 && p == 0; }

inline Values group_gradient(const ToyRun& run, int64_t step, int64_t group, int unit, int p, int64_t count) {
  Values sum(static_cast<size_t>(count));
  for (int64_t mb = 0; mb < run.micro_batches; ++mb) {
    for (int part = written_twice(run, unit, p) ? 0 : 1; part < 2; ++part) {
      const bool first = mb == 0 && part == (written_twice(run, unit, p) ? 0 : 1);
      add(sum, gradient_values(run, {step, group, mb, unit, p, part}, count), first);
    }
  }
  return sum;
}

/// The sum over groups [first, first + size) of a step along a binary tree of `size` leaves, a power of two; groups
/// that the step has not are left out.
inline Values tree_gradient(const ToyRun& run, int64_t step, int unit, int p, int64_t count, int64_t first,
                            int64_t size) {
  if (size == 1) return group_gradient(run, step, first, unit, p, count);
  Values sum = tree_gradient(run, step, unit, p, count, first, size / 2);
  if (first + size / 2 < groups_of(run, step)) {
    add(sum, tree_gradient(run, step, unit, p, count, first + size / 2, size / 2), false);
  }
  return sum;
}

/// Sum over blocks of (sum over the block's groups), each from the left; or along a tree.
inline Values step_gradient(const ToyRun& run, int64_t step, int unit, int p, int64_t count) {
  if (run.tree) {
    const auto leaves = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(run.groups)));
    return tree_gradient(run, step, unit, p, count, 0, leaves);
  }
  std::vector<Values> block_sums;
  for (int64_t block = 0; block < run.blocks; ++block) {
    Values sum;
    for (int64_t i = 0; i < groups_of(run, step); ++i) {
      const int64_t g = run.reversed ? groups_of(run, step) - 1 - i : i;
      if (g * run.blocks / run.groups != block) continue;
      const Values one = group_gradient(run, step, g, unit, p, count);
      const bool first = sum.empty();
      sum.resize(one.size());
      add(sum, one, first);
    }
    if (!sum.empty()) block_sums.push_back(sum);
  }
  Values total = block_sums[0];
  for (size_t b = 1; b < block_sums.size(); ++b) add(total, block_sums[b], false);
  return total;
}

inline std::vector<UnitSpec> toy_units(bool tied) {
  std::vector<UnitSpec> units = {
      {"embedding", {param("table", 97, 101), param("positions", 11, 23)}, tied},
      {"block.0", {param("b0.matrix", 23, 29), param("b0.bias", 300, 1), param("b0.scale", 1, 1)}, false},
      {"block.1", {param("b1.bias", 31, 1), param("b1.matrix", 31, 41)}, false},
      {"block.2", {param("b2.matrix", 16, 16), param("b2.bias", 257, 1), param("b2.more", 40, 40)}, false},
      {"final", {param("final.weight", 23, 1)}, false},  // one chunk: most ranks own nothing
  };
  if (!tied) units.push_back({"head", {param("head", 97, 100)}, false});
  for (int unit : {1, 2, 3}) {
    for (ParamSpec& p : units[static_cast<size_t>(unit)].params) p.by_rows = p.decay;
  }
  return units;
}

/// Runs the first `steps` on one process by loops over vectors: groups inside a block, then blocks.
inline Parameters toy_reference(const ToyRun& run, int64_t steps) {
  const std::vector<UnitSpec> units = toy_units(run.tied);
  Parameters values = initial_parameters(units);
  Parameters m = values, v = values;
  for (Parameters* moment : {&m, &v}) {
    for (auto& unit : *moment) {
      for (Values& values_of_param : unit) std::fill(values_of_param.begin(), values_of_param.end(), 0.0f);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t u = 0; u < units.size(); ++u) {
      for (size_t p = 0; p < units[u].params.size(); ++p) {
        const Values g = step_gradient(run, step, static_cast<int>(u), static_cast<int>(p), units[u].params[p].numel());
        for (size_t i = 0; i < g.size(); ++i) update(values[u][p][i], m[u][p][i], v[u][p][i], g[i]);
      }
    }
  }
  return values;
}

inline Parameters toy_reference(const ToyRun& run) { return toy_reference(run, run.steps); }

/// Number of elements with different bits.
inline int64_t different_bits(const Parameters& a, const Parameters& b) {
  int64_t count = 0;
  for (size_t u = 0; u < a.size(); ++u) {
    for (size_t p = 0; p < a[u].size(); ++p) {
      for (size_t i = 0; i < a[u][p].size(); ++i) {
        if (std::bit_cast<uint32_t>(a[u][p][i]) != std::bit_cast<uint32_t>(b[u][p][i])) ++count;
      }
    }
  }
  return count;
}

}  // namespace llmtrain::test
