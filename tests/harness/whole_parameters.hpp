#pragma once
// Access to a parameter as a whole, whatever part of it a rank stores.

#include <algorithm>
#include <filesystem>

#include "harness/harness.hpp"
#include "params/param_store.hpp"
#include "params/slice_quantizer.hpp"

namespace llmtrain::test {

/// Layout of a store that a test trains with an optimizer; offload is by pieces of four chunks, so that there are many.
struct StoreLayout {
  int stage = 0;
  DType compute = DType::f32;
  Offload optimizer = Offload::none, parameters = Offload::none;
  int64_t segment_elements = default_segment_elements;
};

inline ParamStoreOptions store_options(const Communicator& ranks, const StoreLayout& layout, int64_t groups,
                                       const StatePlanes& states) {
  ParamStoreOptions o;
  o.compute = layout.compute;
  o.zero_stage = layout.stage;
  o.rank = ranks.rank();
  o.size = ranks.size();
  o.groups = groups;
  o.offload_optimizer = layout.optimizer;
  o.offload_parameters = layout.parameters;
  o.offload_path = std::filesystem::temp_directory_path().string();
  o.offload_piece = 4 * chunk_elements;
  o.states = states;
  o.segment_elements = layout.segment_elements;
  return o;
}

/// Quantises a parameter from host memory; every rank passes the same values.
inline void quantize_parameter(ParamStore& store, int unit, int param, const float* values, Communicator& ranks) {
  const ParamSpec& spec = store.units()[unit].spec.params[static_cast<size_t>(param)];
  for (size_t s = 0; s < spec.slices.size(); ++s) {
    SliceQuantizer quantizer(store.units()[unit], param, static_cast<int>(s));
    const float* first = values + spec.slices[s].first_row * spec.columns;
    for (const ElementRange& range : quantizer.ranges(512)) quantizer.put(range, first + range.begin, stream());
    quantizer.finish(ranks, stream());
  }
}

/// Sets a parameter from host memory; every rank passes the same values. Then call publish_weights().
inline void set_parameter(ParamStore& store, int unit, int param, const float* values,
                          Communicator& ranks = communicator()) {
  store.finish_update();
  if (store.units()[unit].spec.quantization) return quantize_parameter(store, unit, param, values, ranks);
  const int64_t first = store.units()[unit].layout.offset(param);
  const int64_t last = first + store.units()[unit].spec.params[static_cast<size_t>(param)].numel();
  for (size_t segment = 0; segment < store.units()[unit].segments.size(); ++segment) {
    const ParamStore::Shard shard = store.shard(unit, segment);
    const int64_t begin = std::max(first, shard.begin), end = std::min(last, shard.end);
    if (begin < end) store.write_state(unit, master_plane, begin, end - begin, values + (begin - first), stream());
  }
  store.round_masters();
}

/// Copies a parameter into `out` (fp32 masters, host memory) on every rank. Collective.
inline void gather_parameter(ParamStore& store, int unit, int param, float* out) {
  const ParamSpec& spec = store.units()[unit].spec.params[static_cast<size_t>(param)];
  for (size_t s = 0; s < spec.slices.size(); ++s) {
    const ParamSlice& slice = spec.slices[s];
    const int64_t first = store.units()[unit].layout.offset(param, static_cast<int>(s));
    float* values = out + slice.first_row * spec.columns;
    store.gather_range(unit, first, first + slice.rows * spec.columns, values);
    if (store.units().options().size > 1) {
      communicator().broadcast(values, slice.rows * spec.columns * static_cast<int64_t>(sizeof(float)));
    }
  }
}

}  // namespace llmtrain::test
