#pragma once
// Access to a parameter as a whole, whatever part of it a rank stores.

#include <algorithm>

#include "harness/harness.hpp"
#include "params/param_store.hpp"

namespace llmtrain::test {

/// Sets a parameter from host memory; every rank passes the same values. Then call publish_weights().
inline void set_parameter(ParamStore& store, int unit, int param, const float* values) {
  store.finish_update();
  const int64_t first = store.layout(unit).offset(param);
  const int64_t last = first + store.spec(unit).params[static_cast<size_t>(param)].numel();
  for (size_t segment = 0; segment < store.segment_count(unit); ++segment) {
    const ParamStore::Shard shard = store.shard(unit, segment);
    const int64_t begin = std::max(first, shard.begin), end = std::min(last, shard.end);
    if (begin < end) store.write_state(unit, master_plane, begin, end - begin, values + (begin - first), stream());
  }
  store.round_masters();
}

/// Copies a parameter into `out` (fp32 masters, host memory) on every rank. Collective.
inline void gather_parameter(ParamStore& store, int unit, int param, float* out) {
  const int64_t first = store.layout(unit).offset(param);
  store.gather_range(unit, first, first + store.spec(unit).params[static_cast<size_t>(param)].numel(), out);
}

}  // namespace llmtrain::test
