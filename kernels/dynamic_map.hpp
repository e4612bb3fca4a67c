#pragma once
// The dynamic 8-bit data type of bitsandbytes (Dettmers, arXiv 1511.04561 and 2110.02861): 256 levels in [-1, 1]
// (signed) or [0, 1] (unsigned), in ascending order, whose spacing shrinks towards zero by powers of ten.

#include <array>
#include <cstdint>

#include "core/host_device.hpp"

namespace llmtrain {

using DynamicMap = std::array<float, 256>;

/// Levels of the map: for each decade 10^-6 ... 1 the midpoints of equal parts of [0.1, 1], twice as many from decade
/// to decade (1 ... 64 of either sign, or 2 ... 128), and 0 and 1. An initialiser also of tables in device memory.
constexpr DynamicMap make_dynamic_map(bool is_signed) {
  DynamicMap map{};
  constexpr std::array<float, 7> decades{1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.F};
  const int zero = is_signed ? 127 : 0;
  map[zero] = 0.F;
  map[255] = 1.F;
  int position = zero + 1;
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = is_signed ? 1 << decade : 2 << decade;
    const float step = (1.F - 0.1F) / static_cast<float>(parts);
    const auto border = [&](int i) {  // rounded once, as by torch.linspace
      const double sum = i < (parts + 1) / 2 ? double{0.1F} + double{step} * i : 1. - double{step} * (parts - i);
      return static_cast<float>(sum);
    };
    for (int i = 0; i < parts; ++i, ++position) {
      map[position] = decades[decade] * ((border(i) + border(i + 1)) / 2.F);
      if (is_signed) map[2 * zero - position] = -map[position];
    }
  }
  return map;
}

/// The maps on the host.
extern const DynamicMap signed_dynamic_map;
extern const DynamicMap unsigned_dynamic_map;

/// Code of the level nearest to `value`; halfway between two levels, the even code; NaN gives code 0. These are the
/// choices of bitsandbytes' CUDA kernels.
LLMTRAIN_HOST_DEVICE inline uint8_t nearest_code(const float* map, float value) {
  int code = 127;
  for (int step = 64; step > 0; step >>= 1) code += value > map[code] ? step : -step;
  // The search ends at an even code, with its odd neighbours beside it.
  if (value > map[code]) return static_cast<uint8_t>(value > (map[code] + map[code + 1]) * 0.5F ? code + 1 : code);
  if (code == 0) return 0;
  return static_cast<uint8_t>(value < (map[code] + map[code - 1]) * 0.5F ? code - 1 : code);
}

/// Border between two neighbouring codes of a map: node `node`, from 1 on, of the tree that nearest_code_of() searches.
/// The children of node n are 2 n and 2 n + 1; nodes of one depth are neighbours, so that threads that search together
/// read different banks of shared memory.
LLMTRAIN_HOST_DEVICE inline float code_border(const float* map, int node) {
  int depth = 7;
  while (node >> depth == 0) --depth;
  const int code = ((2 * (node - (1 << depth)) + 1) << (7 - depth)) - 1;
  return (map[code] + map[code + 1]) * 0.5F;
}
/// nearest_code() of a map that has these borders, 256 of them: number 0 is none.
LLMTRAIN_HOST_DEVICE inline uint8_t nearest_code_of(const float* borders, float value) {
  int node = 1;
  // On these borders the upper code is even, on those of the last depth the lower one.
  for (int depth = 0; depth < 7; ++depth) node = 2 * node + (value >= borders[node] ? 1 : 0);
  return static_cast<uint8_t>(2 * node + (value > borders[node] ? 1 : 0));
}

}  // namespace llmtrain
