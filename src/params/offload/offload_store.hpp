#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "params/offload/offload_layout.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

class OffloadAhead;
class OffloadFile;
class OffloadRing;
class OffloadTransfers;

/// Kinds of state, or weights, that lie elsewhere than in the plan: on a disk, or beside a GPU in host memory. They are
/// reached piece by piece.
class OffloadStore {
 public:
  explicit OffloadStore(const UnitStates& units);
  ~OffloadStore();
  void plan(Arena& arena);
  int64_t disk_bytes() const { return policy_.on_disk ? layout_.bytes() : 0; }
  int64_t pinned_bytes() const;  ///< of host memory beside the plan; only for a GPU
  /// Creates the file on the disk, if any; start() does so if this was not called. UserError when space is missing.
  void reserve_disk();
  void start(Stream& stream);

  bool has(size_t kind) const { return policy_.offloaded[kind]; }
  /// True if the states other than the master are offloaded, all of them.
  bool has_moments() const { return options_.states.size() > 1 && has(master_plane + 1); }
  /// True for a GPU with offloaded moments; elsewhere there is no separate host update.
  bool updates_on_host() const { return has_moments() && !device_memory_is_host(); }
  bool reads_weights_ahead() const;

  /// Calls visit(host memory, offset in bytes from `begin`, bytes) for the range of each piece that overlaps elements
  /// [begin, begin + count) of a kind. Changes are stored if `changes`.
  void each_part(int unit, size_t kind, int64_t begin, int64_t count, bool changes,
                 const std::function<void(char* memory, int64_t offset, int64_t bytes)>& visit) const;
  /// Copies this rank's part of a trained unit's weights into a buffer of the whole unit.
  void copy_weights(int unit, const Tensor& buffer);

  // A pass over all pieces, see StatePass. `changes`: the pieces are stored.
  const OffloadLayout& layout() const { return layout_; }
  void begin_pass(size_t planes, bool changes);
  /// Waits for the next piece; returns false at the end of the pass.
  bool next_piece(size_t index);
  void abandon_pass();
  /// Host memory of the pass's current piece; without a disk, of any piece.
  char* memory_of(const OffloadPiece& piece) const;
  /// Adds the offloaded tensors, which lie at `memory` as in the layout.
  void add_tensors(ParamShard& shard, const OffloadPiece& piece, char* memory) const;
  const Tensor& device_piece() const { return device_piece_; }      ///< room for a piece, for kernels of a GPU
  OffloadTransfers* transfers() const { return transfers_.get(); }  ///< null unless the host makes a GPU's updates

 private:
  int64_t ring_bytes() const;
  int64_t bytes_of_kind(const UnitState& u, size_t kind, int64_t begin, int64_t end) const;
  void take_ahead(int unit, const Tensor& buffer);

  const UnitStates& units_;
  const ParamStoreOptions& options_ = units_.options();
  const ParamPolicy& policy_ = units_.policy();
  OffloadLayout layout_;
  Stream* stream_ = nullptr;
  Tensor ring_memory_;           ///< used if device memory is the host's
  PinnedBuffer pinned_;          ///< used otherwise
  char* host_memory_ = nullptr;  ///< one kind of a piece from a disk, or all pieces
  mutable std::mutex part_mutex_;
  Tensor device_piece_;
  std::unique_ptr<OffloadTransfers> transfers_;
  std::unique_ptr<OffloadFile> file_;
  std::unique_ptr<OffloadRing> ring_;    ///< destroyed before the file, which its threads use
  std::unique_ptr<OffloadAhead> ahead_;  ///< prefetches weights; destroyed before the file
  int last_taken_ = -1;                  ///< last unit taken from `ahead_`
};

}  // namespace llmtrain
