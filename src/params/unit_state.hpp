#pragma once
// Units as a rank stores them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/params.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"
#include "params/param_policy.hpp"
#include "params/unit_layout.hpp"
#include "params/unit_planes.hpp"

namespace llmtrain {

/// The elements [begin, end) of a flat unit, of one segment, that this rank updates or, if it is frozen, stores for
/// all ranks. Stage 0: the whole segment.
struct ParamShard {
  int64_t begin = 0;
  int64_t end = 0;
  /// Planes of the state; frozen: empty, except that the master is the weights if they are fp32.
  std::array<Tensor, max_state_planes> states = {};
  Tensor gradient = {};  ///< fp32, sum over groups after GradientReducer::finish(); frozen: empty
  /// this range in the compute dtype if it is stored separately, else empty; a writer of the master must write it too
  /// (adamw_update does)
  Tensor weights = {};
  bool on_host = false;                ///< true if the tensors are in host memory although the device has its own
  const UnitPlanes* planes = nullptr;  ///< of the unit; null: the planes have as many values in every chunk

  const Tensor& master() const { return states[master_plane]; }
  /// The tensors' values for elements [first, last) only: whole chunks where a tensor has values of chunks.
  ParamShard part(int64_t first, int64_t last) const;
  UnitRange part_of(const UnitRange& range) const {
    return {std::max(begin, range.begin), std::min(end, range.end), range.decay, range.lr_scale};
  }
};

/// Elements [first, last) of a unit. All numbers of elements are those of the unit.
struct UnitSegment {
  int64_t first = 0, last = 0;
  std::vector<int64_t> borders;              ///< between all ranks' shards, from `first` on; valid after start()
  int64_t begin = 0, end = 0;                ///< this rank's shard
  int64_t update_begin = 0, update_end = 0;  ///< range that this rank updates: its shard or everything
  // Buffers; empty if the policy has no such buffer.
  /// Planes of the state of the elements that this rank updates; no data if they are offloaded.
  std::array<Tensor, max_state_planes> states;
  Tensor rounded;  ///< weights, the same elements (ParamPolicy::rounded_shard, or frozen: in the storage)

  int64_t elements() const { return last - first; }
  int64_t shard_elements() const { return end - begin; }
  int64_t update_elements() const { return update_end - update_begin; }
  const Tensor& master() const { return states[master_plane]; }
};

/// A unit's geometry, which does not change, and the memory of its state and of weights that this rank keeps;
/// StateStore gives it the memory.
struct UnitState {
  UnitState(UnitSpec given, const ParamStoreOptions& options, const ParamPolicy& policy);
  void set_borders(int size);

  UnitSpec spec;
  UnitLayout layout;
  UnitPlanes planes;  ///< of the state
  std::vector<UnitSegment> segments;
  /// Storage of the weights: values of the compute dtype by element, or the bytes of a chunk's record.
  StatePlane storage;
  /// True if all weights of the unit are stored; else they are gathered around their use. (One rank stores those of a
  /// frozen unit once.)
  bool whole;
  std::vector<int64_t> borders;         ///< UnitLayout::borders() of all ranks, valid after start()
  std::vector<int64_t> stored_borders;  ///< `borders` in values of the storage
  /// Order in which the segments' gradients are reduced: those of matrices by rows from the last on, then the others.
  std::vector<size_t> order;
  size_t by_rows =
      0;           ///< number of the former; 0 if the unit is not divided, or others of its kind are written with it
  Tensor weights;  ///< in the storage, if `whole`
  Tensor tables;   ///< fp32, of all slices of a quantised unit, whole on every rank

  bool trained() const { return spec.trained; }
  std::span<const UnitSpec> as_range() const { return {&spec, 1}; }
  bool quantized() const { return spec.quantization.has_value(); }
  const ParamSpec& param(int index) const;
  /// "block 3", or "block 3, segment 2".
  std::string name_of(const UnitSegment& segment) const;
  /// The segment in which these elements of this rank lie.
  const UnitSegment& segment_of(int64_t begin, int64_t count) const;
  /// Number of values of the whole unit in its storage.
  int64_t stored_values() const { return storage.values(layout.elements()); }
  /// Values of elements [begin, end) in a tensor of the storage that begins with element `first`.
  Tensor stored_part(const Tensor& flat, int64_t begin, int64_t end, int64_t first = 0) const {
    return flat.rows(storage.values(begin - first), storage.values(end - begin));
  }
  /// Storage of this rank's elements of a frozen unit's segment.
  Tensor stored(const UnitSegment& s) const {
    return whole ? stored_part(weights, s.update_begin, s.update_end) : s.rounded;
  }
  /// View of one tensor in the flat unit, or in elements of it from `first` on, in the shape that kernels expect.
  Tensor view(const Tensor& flat, int param, int64_t first = 0) const;

  // Units in fewer bits: their records are sharded and gathered as weights are.
  /// Records (quantized_matrix.hpp) of elements [begin, begin + count) in whole chunks that this rank stores. Any
  /// thread may write them if no other one writes these elements; then call ParamStore::publish_weights().
  Tensor records(int64_t begin, int64_t count) const;
  /// The table of a slice.
  Tensor table(int param, int slice) const;
  /// Copies this rank's values in fp32 to host memory.
  void read_dequantized(int64_t begin, int64_t count, float* out, Stream& stream) const;
  /// First value of a slice's table in `tables`.
  int64_t table_offset(int param, int slice) const;
  int64_t table_values() const;

 private:
  void add_segments(const ParamStoreOptions& options, bool whole_state);
  void order_segments(bool reduces_rows);
};

inline const UnitSpec& spec_of(const UnitState& unit) { return unit.spec; }

/// The units of a store, and how they are stored.
class UnitStates {
 public:
  UnitStates(std::vector<UnitSpec> specs, const ParamStoreOptions& options);

  const ParamStoreOptions& options() const { return options_; }
  const ParamPolicy& policy() const { return policy_; }
  int size() const { return static_cast<int>(units_.size()); }
  const UnitState& operator[](int unit) const;
  UnitState& operator[](int unit) { return const_cast<UnitState&>(std::as_const(*this)[unit]); }
  auto begin() { return units_.begin(); }
  auto end() { return units_.end(); }
  auto begin() const { return units_.begin(); }
  auto end() const { return units_.end(); }

  // The units of the whole model; ranks have those of their blocks of matrices and experts, and the common ones.
  const std::vector<UnitSpec>& model_units() const { return options_.model_units; }
  /// Number of a unit among model_units().
  int model_unit(int unit) const { return numbers_[static_cast<size_t>(unit)]; }
  /// The unit with this number among model_units(); -1: other ranks have it.
  int store_unit(int64_t model_unit) const;
  /// Rank in the job, among the first ranks_of_blocks() ones, that has this unit of model_units().
  int first_owner(int64_t model_unit) const;

  /// The elements of the segment that are this rank's among the ranks with the same units: disjoint at any stage.
  UnitRange owned(int unit, size_t segment) const;
  /// The elements of the segment that this rank counts in sums over the whole model (norm, hash): disjoint over the
  /// job, since common units count on the first of the ranks that share matrices, or experts, alone.
  UnitRange counted(int unit, size_t segment) const;
  bool counts(int unit) const {
    const UnitSpec& spec = (*this)[unit].spec;
    return (spec.tensor_block >= 0 || options_.tensor_rank == 0) &&
           (spec.expert_block >= 0 || options_.expert_rank == 0);
  }
  bool any_trained() const;
  int64_t parameters() const;          ///< of the model, padding excluded
  int64_t trained_parameters() const;  ///< of the model's trained units, without fixed slices
  /// Bytes of the state of all trained units, over all ranks, each once.
  int64_t state_bytes() const;

 private:
  void number_units();

  ParamStoreOptions options_;
  ParamPolicy policy_;
  std::vector<UnitState> units_;
  std::vector<int> numbers_;  ///< model_unit()
};

// Copies between a tensor and host memory that end before the function returns.
void write_tensor(const Tensor& to, const void* values, Stream& stream);
void read_tensor(void* values, const Tensor& from, Stream& stream);

/// Elements [begin, end) of a flat tensor.
inline Tensor part_of(const Tensor& flat, int64_t begin, int64_t end) { return flat.rows(begin, end - begin); }

}  // namespace llmtrain
