#pragma once
// Interface between checkpoints and the owner of the state: ranges of flat units in host memory, in blocks.

#include <cstdint>
#include <vector>

#include "checkpoint/schema.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// State to save from this rank: in every unit the elements that parts_of_shard() assigns to it.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual Schema schema() const = 0;
  /// Copies elements [begin, begin + count) of a unit, all of them this rank's and of one segment, to host memory.
  /// Whole chunks, unless the plane has a value per element.
  virtual void read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const = 0;
};

/// State that this rank needs back.
class StateTarget {
 public:
  virtual ~StateTarget() = default;
  virtual Schema schema() const = 0;
  virtual std::vector<ShardBorders> wanted(int64_t unit) const = 0;
  virtual bool wants(size_t /*plane*/) const { return true; }
  /// True if the target has the run's frozen weights already, so that the checkpoint need not have every tensor, and if
  /// its units may be others.
  virtual bool may_lack() const { return false; }
  /// Takes elements that lie in one range of wanted().
  virtual void write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) = 0;
  /// Collective: called when all ranges are written.
  virtual void finish() = 0;
};

/// The trained units of a ParamStore's model as both, at any ZeRO stage. Checkpoints have no others. Of units that
/// other ranks have it owns and wants nothing.
class StoreState : public StateSource, public StateTarget {
 public:
  StoreState(ParamStore& store, Stream& stream);
  Schema schema() const override;
  void read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const override;
  std::vector<ShardBorders> wanted(int64_t unit) const override;
  void write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) override;
  void finish() override;

  int64_t unit_count() const { return static_cast<int64_t>(units_.size()); }
  /// Elements that this rank saves, by segment.
  std::vector<ShardBorders> owned(int64_t unit) const;

 private:
  int store_unit(int64_t unit) const { return units_[static_cast<size_t>(unit)]; }

  ParamStore& store_;
  Stream& stream_;
  std::vector<int> units_;  ///< the model's trained ones in the store; -1: other ranks have it
};

/// The parameters alone, for a ParamStore that is not trained. (Other states are not read.)
class StoreParameters : public StateTarget {
 public:
  StoreParameters(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {}
  Schema schema() const override;
  std::vector<ShardBorders> wanted(int64_t unit) const override;
  bool wants(size_t plane) const override { return plane == master_plane; }
  bool may_lack() const override { return true; }
  void write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) override {
    store_.write_state(store_.units().store_unit(unit), plane, begin, count, values, stream_);
  }
  void finish() override { store_.publish_masters(); }

 private:
  ParamStore& store_;
  Stream& stream_;
};

}  // namespace llmtrain
