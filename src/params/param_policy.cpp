#include "params/param_policy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/device.hpp"

namespace llmtrain {

namespace {

void check_states(const StatePlanes& states) {
  LLMTRAIN_CHECK(!states.empty() && states.size() <= max_state_planes, "an optimizer has a few planes of state");
  const StatePlane& master = states[master_plane];
  LLMTRAIN_CHECK(master.dtype == DType::f32 && master.by_element(), "the first plane of the state is the fp32 master");
  for (const StatePlane& plane : states) {
    LLMTRAIN_CHECK(
        plane.by_tensor() ? plane.of_tensor != nullptr : plane.per_chunk > 0 && plane.per_chunk <= chunk_elements,
        fmt::format("the plane {} has a value per chunk or element", plane.name));
  }
}

/// On the host, offloading to host memory means no offloading.
Offload elsewhere(Offload place) { return place == Offload::cpu && device_memory_is_host() ? Offload::none : place; }

}  // namespace

MemoryScope ParamStoreOptions::exchanged() const {
  const bool shares = node_size > 1 || (ranks_per_node > 1 && device_memory_is_host());
  return shares ? MemoryScope::shared : MemoryScope::own;
}

ParamPolicy::ParamPolicy(const ParamStoreOptions& o) : offloaded(o.states.size(), false) {
  check_states(o.states);
  LLMTRAIN_CHECK(o.offload_piece % chunk_elements == 0, "pieces are cut between chunks");
  LLMTRAIN_CHECK(is_compute_type(o.compute), "weights are fp32, bf16 or fp16");
  LLMTRAIN_CHECK(o.size > 0 && o.rank >= 0 && o.rank < o.size, "the rank is not one of the job's");
  LLMTRAIN_CHECK(o.zero_stage >= 0 && o.zero_stage <= 3, "ZeRO has the stages 0 to 3");
  LLMTRAIN_CHECK(o.node_size >= 1 && o.node_size <= o.size, "a node has at least one rank and at most all");
  const bool alone = o.size == 1;
  const Offload optimizer = elsewhere(o.offload_optimizer);
  const Offload weights = o.zero_stage == 3 ? elsewhere(o.offload_parameters) : Offload::none;
  LLMTRAIN_CHECK(optimizer == weights || optimizer == Offload::none || weights == Offload::none,
                 "offload_optimizer and offload_parameters must be equal if both are set");
  const bool optimizer_goes = optimizer != Offload::none, weights_go = weights != Offload::none;
  own_master = o.compute == DType::f32;
  whole_state = o.zero_stage == 0 || alone;
  whole_weights = o.zero_stage < 3 || (alone && own_master && !weights_go);
  keeps_gathered = !whole_weights && o.keeps_gathered;
  const bool master_goes = own_master ? weights_go : optimizer_goes;
  rounded_shard = !whole_weights && !own_master && master_goes;
  std::fill(offloaded.begin(), offloaded.end(), optimizer_goes);
  offloaded[master_plane] = master_goes;
  offloaded.push_back(rounded_shard && weights_go);
  on_disk = (master_goes || optimizer_goes) && (optimizer == Offload::nvme || weights == Offload::nvme);
}

}  // namespace llmtrain
