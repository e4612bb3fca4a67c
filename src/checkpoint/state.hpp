#pragma once
// Interface between checkpoints and the owner of the state: ranges of flat units in host memory, in blocks.

#include <cstdint>

#include "checkpoint/schema.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// State to save from this rank: in every unit the elements that borders_of_shard() assigns to it.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual Schema schema() const = 0;
  /// Copies elements [begin, begin + count) of a unit, all of them this rank's, to host memory.
  virtual void read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const = 0;
};

/// State that this rank needs back.
class StateTarget {
 public:
  virtual ~StateTarget() = default;
  virtual Schema schema() const = 0;
  virtual ShardBorders wanted(int64_t unit) const = 0;
  virtual bool wants(StateKind /*kind*/) const { return true; }
  virtual void write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) = 0;
  /// Collective: called when all ranges are written.
  virtual void finish() = 0;
};

/// A ParamStore as both, at any ZeRO stage.
class StoreState : public StateSource, public StateTarget {
 public:
  StoreState(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {}
  Schema schema() const override;
  void read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const override;
  ShardBorders wanted(int64_t unit) const override;
  void write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) override;
  void finish() override;

 private:
  ParamStore& store_;
  Stream& stream_;
};

/// The parameters alone, for a ParamStore that is not trained. (The moments are not read.)
class StoreParameters : public StateTarget {
 public:
  StoreParameters(ParamStore& store, Stream& stream) : store_(store), state_(store, stream) {}
  Schema schema() const override { return state_.schema(); }
  ShardBorders wanted(int64_t unit) const override;
  bool wants(StateKind kind) const override { return kind == StateKind::master; }
  void write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) override {
    state_.write(unit, kind, begin, count, values);
  }
  void finish() override { store_.publish_masters(); }

 private:
  ParamStore& store_;
  StoreState state_;
};

}  // namespace llmtrain
