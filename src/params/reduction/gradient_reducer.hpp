#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/arena.hpp"
#include "parallel/communicator.hpp"
#include "params/gradient_buffers.hpp"
#include "params/reduction/gradient_exchanges.hpp"
#include "params/reduction/group_sums.hpp"
#include "params/reduction/reduction_plan.hpp"
#include "params/reduction/tree_sums.hpp"
#include "params/unit_gathers.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Gradients from the backward pass to the sums over groups at the owners of shards, whatever arrives first. The rest
/// of the store knows neither which group a rank computes, nor how gradients travel, nor in which order they are added
/// (ReductionPlan, GroupSums). ParamStore documents the other public calls.
class GradientReducer {
 public:
  GradientReducer(const UnitStates& units, UnitGathers& gathers);
  void plan(Arena& arena);
  /// Bytes that an exchange sends and receives on this rank, at most.
  int64_t max_exchange_bytes() const { return exchanges_.max_bytes(); }
  /// `sharing`: the ranks that share experts, where groups_at_once are those of all of them.
  void start(Stream& stream, Communicator* sharing);

  /// Which rank computes which group of a step, and when.
  GroupSchedule schedule(int64_t groups) const { return plan_.schedule(groups); }
  /// The first of the groups whose rows this rank has in a round of the schedule; -1: none.
  int64_t own_group(const GroupSchedule& schedule, int64_t round) const;

  // A step.
  void begin_step(int64_t groups);
  int64_t rounds() const { return schedule_.rounds(); }
  /// Returns the first group whose rows this rank has in the round, or -1.
  int64_t begin_round(int64_t round);
  void begin_micro_batch(bool first, bool last);
  bool accumulate() const { return !first_; }
  /// Number of groups of this round whose gradients this rank forms: those of all ranks that share experts with it.
  int64_t groups_here() const {
    return group() < 0 ? 0 : std::min(options_.groups_at_once, schedule_.groups - group());
  }
  /// Which of these the next gradients are of, from 0; those of units that all ranks have are of its own ones.
  void set_group(int64_t index) { index_ = index; }
  Tensor gradient(int unit, int param);
  /// See ParamStore::row_blocks().
  class RowBlocks {
   public:
    RowBlocks(GradientReducer& reducer, int unit, int param);
    bool next();
    Tensor gradient() const;  ///< fp32 [rows of the block, columns], of the group that is set
    int64_t first_row() const { return first_row_; }

   private:
    GradientReducer& reducer_;
    int unit_, param_;
    size_t begin_ = 0, segment_ = 0;
    bool written_ = false;
    size_t part_ = 0;
    int64_t first_ = 0, last_ = 0;  ///< elements of the unit
    int64_t first_row_ = 0;
  };
  /// True if all of the unit's gradient has memory at once; else its rows are written in their order.
  bool has_whole_gradient(int unit) const { return buffers_.part_count(unit) == 1; }
  /// True if this rank forms no gradient of the unit in the round and takes part in the reductions of its rows.
  bool joins(int unit) const { return units_[unit].trained() && last_ && group_of(unit) < 0; }
  void join(int unit) { start_exchanges(unit, units_[unit].by_rows); }
  void reduce(int unit);
  /// Waits until every shard holds the sum over all groups.
  void finish();

  // Replay: groups that another rank has computed are computed once more, between the last round and finish().
  /// Hashes this rank's gradients of a round of the step that begin_step() began; -1: none.
  void hash_round(int64_t round) { hashed_round_ = round; }
  /// Hash of the gradients of this rank in the round, or of the replay since; equal for equal bits, on any rank.
  uint64_t hash() const { return hash_; }
  /// From here on gradients are those of the groups that a rank had in the hashed round; they are hashed alone. Their
  /// memory is that of the round. Returns the first group whose rows it had, or -1.
  int64_t begin_replay(int64_t rank);
  void end_replay();
  /// fp32: the sums of a segment's shard of a trained unit; at stage 0 of the whole segment.
  Tensor sum(int unit, size_t segment) const;

  // Progress while other work waits.
  /// Adds received gradients to the sums.
  void add_arrived() { exchanges_.add_arrived(); }
  /// Does so, and frees buffers as early as possible.
  void complete_arrived();

  // Passes as graphs of a device.
  /// True if there are passes that use only this rank's device, and the same buffers each time: with whole weights, all
  /// of them on one rank; on several ranks those between the first and the last one of a group.
  bool repeats() const {
    return units_.policy().whole_weights && (options_.size == 1 || options_.micro_batches_per_group > 2);
  }
  /// True if the current micro-batch has such passes, if any has. The first one of a group waits for the weights, and
  /// for exchanges of the previous round; the last one starts the reduction.
  bool is_replayable() const { return !hashes() && (options_.size == 1 || (!first_ && !last_ && exchanges_.empty())); }
  uint64_t pass_key() const;
  void mark_passes_done();
  void repeat_micro_batch();

 private:
  /// Progress of a unit's reduction.
  struct Progress {
    bool open = false;             ///< a gradient was written, reduce() was not called
    std::vector<uint8_t> written;  ///< by segment: by RowBlocks, in the last micro-batch of this round
    size_t started = 0;            ///< number of segments whose exchange in this round has started
    int64_t reduced = 0;           ///< number of completed rounds
  };

  int64_t group() const { return schedule_.group_of(round_, rank_); }
  bool hashes() const { return round_ >= 0 && round_ == hashed_round_; }
  /// True if ranks that share experts have gradients of a unit for the groups of their own rows alone.
  bool is_divided(int unit) const { return options_.shares_experts() && units_[unit].spec.expert_block < 0; }
  /// The first of the groups for which this rank forms a gradient of the unit; -1: none.
  int64_t group_of(int unit) const { return is_divided(unit) ? own_group(schedule_, round_) : group(); }
  Progress& at(int unit) { return progress_[static_cast<size_t>(unit)]; }
  Tensor open(int unit, size_t part);
  void start_exchange(int unit, size_t segment);
  void take_groups(int unit, size_t segment);
  void hash_groups(int unit, const UnitSegment& s);
  void add_groups();
  void exchange_groups(const UnitSegment& s);
  void start_exchanges(int unit, size_t count);
  void end_rows(int unit, size_t segment);
  void complete_oldest();
  void gather_sums();

  const UnitStates& units_;
  const ParamStoreOptions& options_ = units_.options();
  UnitGathers& gathers_;
  bool gathers_sums_;  ///< stage 0 on several ranks: the sums go to everybody
  ReductionPlan plan_;
  GradientBuffers buffers_;
  std::unique_ptr<GroupSums> sums_;   ///< of shards; null: the gradient is the sum
  std::optional<TreeSums> run_sums_;  ///< of this rank's run of groups, if it adds several
  GradientExchanges exchanges_;
  std::vector<Progress> progress_;  ///< by unit
  std::vector<Tensor> values_;      ///< of the exchange being started
  std::vector<GroupRange> ranges_;  ///< their groups
  TreeFold fold_;                   ///< additions of a round's groups

  GroupSchedule schedule_;  ///< of the current step
  int64_t round_ = -1;
  int rank_ = options_.rank;  ///< whose groups this rank computes
  bool replays_ = false;
  int64_t hashed_round_ = -1;
  uint64_t hash_ = 0;
  int64_t index_ = 0;                ///< among the rank's groups of the round
  bool first_ = true, last_ = true;  ///< position of the micro-batch in its group
  Stream* stream_ = nullptr;
  Communicator* sharing_ = nullptr;  ///< where shares_experts()
  /// fp32, values of the other ones, for exchanges in progress and one that begins.
  std::vector<Tensor> shared_values_;
  size_t next_shared_ = 0;
};

}  // namespace llmtrain
