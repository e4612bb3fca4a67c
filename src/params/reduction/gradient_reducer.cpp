#include "params/reduction/gradient_reducer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reduce.hpp"
#include "parallel/traffic.hpp"
#include "params/number_hook.hpp"

namespace llmtrain {

namespace {

/// On one rank a reduction completes at once, so that the ring costs nothing at any stage.
bool has_ring(const ParamStoreOptions& o) {
  const bool alone = o.size == 1;
  return !(alone && o.groups == 1) && o.micro_batches_per_group == 1 && (o.zero_stage >= 2 || alone);
}

}  // namespace

GradientReducer::GradientReducer(const UnitStates& units, UnitGathers& gathers)
    : units_(units),
      gathers_(gathers),
      gathers_sums_(options_.zero_stage == 0 && options_.size > 1),
      plan_(options_),
      buffers_(units, has_ring(options_)),
      sums_(make_group_sums(units, plan_.max_owner_sums())),
      exchanges_(units, plan_, gathers),
      schedule_(plan_.schedule(0)) {
  LLMTRAIN_CHECK(options_.micro_batches_per_group >= 1, "a group has at least one micro-batch");
  if (plan_.sums_runs()) run_sums_.emplace(units, TreeSums::Part::segment, plan_.max_run_sums());
  for (const UnitState& u : units) progress_.push_back({.written = std::vector<uint8_t>(u.segments.size())});
}

void GradientReducer::plan(Arena& arena) {
  if (!units_.any_trained()) return;
  buffers_.plan(arena);
  if (run_sums_) run_sums_->plan(arena);
  if (sums_) sums_->plan(arena);
  exchanges_.plan(arena);
  if (!options_.shares_experts()) return;
  int64_t largest = 0;
  for (int unit = 0; unit < units_.size(); ++unit) {
    for (const UnitSegment& s : units_[unit].segments) {
      if (units_[unit].trained() && is_divided(unit)) largest = std::max(largest, s.elements());
    }
  }
  shared_values_.resize(static_cast<size_t>(plan_.exchanges_at_once()) + 1);
  const int64_t values = (options_.expert_size - 1) * (plan_.tree() ? 1 : options_.own_groups_at_once());
  for (size_t i = 0; i < shared_values_.size(); ++i) {
    arena.add(shared_values_[i], MemoryCategory::communication, fmt::format("gradients of other ranks {}", i),
              DType::f32, {values * largest}, options_.exchanged());
  }
}

void GradientReducer::start(Stream& stream, Communicator* sharing) {
  LLMTRAIN_CHECK(!options_.shares_experts() || (sharing != nullptr && sharing->size() == options_.expert_size),
                 "the ranks that share experts are known");
  stream_ = &stream;
  sharing_ = sharing;
  values_.reserve(static_cast<size_t>(plan_.max_values()));
  exchanges_.start(
      stream, [this](int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients) {
        sums_->add(unit, segment, groups, gradients, *stream_);
      });
}

void GradientReducer::begin_step(int64_t groups) {
  LLMTRAIN_CHECK(units_.any_trained(), "a parameter store without gradients cannot be trained");
  LLMTRAIN_CHECK(groups >= 1 && groups <= options_.groups,
                 fmt::format("a step of {} groups was planned for at most {}", groups, options_.groups));
  LLMTRAIN_CHECK(exchanges_.empty(), "a step begins before the last one's gradients are finished");
  schedule_ = plan_.schedule(groups);
  if (sums_) sums_->begin_step(groups);
  if (run_sums_) run_sums_->begin_step(groups, options_.rank * schedule_.run);
  round_ = hashed_round_ = -1;
  hash_ = 0;
  for (Progress& p : progress_) p.reduced = 0;
}

int64_t GradientReducer::begin_replay(int64_t rank) {
  LLMTRAIN_CHECK(hashed_round_ >= 0, "a replay is of a round that was hashed");
  while (!exchanges_.empty()) complete_oldest();
  replays_ = true;
  rank_ = static_cast<int>(rank);
  round_ = hashed_round_;
  hash_ = 0;
  begin_micro_batch(true, true);
  return own_group(schedule_, round_);
}

void GradientReducer::end_replay() {
  replays_ = false;
  rank_ = options_.rank;
}

int64_t GradientReducer::begin_round(int64_t round) {
  LLMTRAIN_CHECK(round == round_ + 1 && round < rounds(), fmt::format("round {} is not the next one", round));
  round_ = round;
  exchanges_.begin_round(schedule_, round);
  begin_micro_batch(true, true);
  return own_group(schedule_, round_);
}

int64_t GradientReducer::own_group(const GroupSchedule& schedule, int64_t round) const {
  const int64_t first = schedule.group_of(round, rank_);
  if (first < 0 || !options_.shares_experts()) return first;
  const int64_t own = first + options_.expert_rank * options_.own_groups_at_once();
  return own < schedule.groups ? own : -1;
}

void GradientReducer::begin_micro_batch(bool first, bool last) {
  LLMTRAIN_CHECK((first && last) || options_.micro_batches_per_group > 1,
                 "groups were planned to have one micro-batch");
  first_ = first;
  last_ = last;
}

/// Returns the memory of a part whose exchanges in the previous round are complete.
Tensor GradientReducer::open(int unit, size_t part) {
  LLMTRAIN_CHECK(round_ >= 0, "a gradient is written inside a round");
  at(unit).open = true;
  while (!buffers_.open(unit, part, *stream_)) {
    LLMTRAIN_CHECK(!exchanges_.empty(),
                   fmt::format("no buffer is free for the gradient of {}: too many are open", units_[unit].spec.name));
    complete_oldest();
  }
  return buffers_.memory(unit, part, index_);
}

Tensor GradientReducer::gradient(int unit, int param) {
  const UnitState& u = units_[unit];
  LLMTRAIN_CHECK(u.trained(), fmt::format("{} is frozen and has no gradient", u.spec.name));
  const ParamSpec& spec = u.param(param);
  LLMTRAIN_CHECK(u.by_rows == 0 || !spec.by_rows, spec.name + " is written by rows");
  const int64_t offset = u.layout.offset(param);
  const size_t part = buffers_.part_at(unit, offset);
  LLMTRAIN_CHECK(offset + spec.numel() <= buffers_.end_of(unit, part), spec.name + " is larger than a segment");
  return u.view(open(unit, part), param, buffers_.begin_of(unit, part));
}

GradientReducer::RowBlocks::RowBlocks(GradientReducer& reducer, int unit, int param)
    : reducer_(reducer), unit_(unit), param_(param) {
  const UnitState& u = reducer.units_[unit];
  const ParamSpec& spec = u.param(param);
  LLMTRAIN_CHECK(u.trained() && spec.by_rows, spec.name + " is frozen, or not written by rows");
  if (u.by_rows == 0) {
    segment_ = 1;
    return;
  }
  const int64_t first = u.layout.offset(param), last = first + spec.numel();
  while (u.segments[begin_].last <= first) ++begin_;
  segment_ = begin_;
  while (segment_ < u.segments.size() && u.segments[segment_].first < last) ++segment_;
}

bool GradientReducer::RowBlocks::next() {
  if (written_) reducer_.end_rows(unit_, segment_);
  if (segment_ == begin_) return false;
  const UnitState& u = reducer_.units_[unit_];
  const GradientBuffers& buffers = reducer_.buffers_;
  const UnitSegment& segment = u.segments[--segment_];
  part_ = buffers.part_of(unit_, segment_);
  const ParamSpec& spec = u.param(param_);
  const int64_t offset = u.layout.offset(param_);
  const bool all = u.by_rows == 0;
  first_ = std::max(all ? 0 : segment.first, offset);
  last_ = std::min(all ? u.layout.elements() : segment.last, offset + spec.numel());
  first_row_ = (first_ - offset) / spec.columns;
  reducer_.open(unit_, part_);
  written_ = true;
  return true;
}

Tensor GradientReducer::RowBlocks::gradient() const {
  const GradientBuffers& buffers = reducer_.buffers_;
  const int64_t columns = reducer_.units_[unit_].param(param_).columns;
  const Tensor whole = buffers.memory(unit_, part_, reducer_.index_);
  return whole.rows(first_ - buffers.begin_of(unit_, part_), last_ - first_)
      .reshaped({(last_ - first_) / columns, columns});
}

/// Sets the values of this round's groups of this rank, and their ranges: one for each group, or along the tree their
/// sum.
void GradientReducer::take_groups(int unit, size_t segment) {
  const UnitSegment& s = units_[unit].segments[segment];
  values_.clear();
  ranges_.clear();
  if (const int64_t first = group_of(unit); first >= 0) {
    const int64_t count = std::min(options_.groups_at_once_of(units_[unit].spec), schedule_.groups - first);
    for (int64_t index = 0; index < count; ++index) {
      values_.push_back(buffers_.memory(unit, segment, s.first, s.last, index));
      ranges_.push_back({first + index, first + index + 1});
    }
    if (number_hook != nullptr) number_hook(NumberKind::gradient, unit, values_.front(), *stream_);
    if (hashes()) hash_groups(unit, s);
    if (!replays_) add_groups();
  }
  if (replays_ || !is_divided(unit) || group() < 0) return;
  exchange_groups(s);
  add_groups();
}

void GradientReducer::hash_groups(int unit, const UnitSegment& s) {
  for (const Tensor& value : values_) {
    const Philox4 mixed = philox4x32(hash_, chunked_hash(value, s.first, *stream_), static_cast<uint64_t>(unit));
    hash_ = (uint64_t{mixed.v[1]} << 32) | mixed.v[0];
  }
}

/// Along the tree: the values become their sum.
void GradientReducer::add_groups() {
  if (!plan_.tree() || values_.size() < 2) return;
  fold_.start(schedule_.groups);
  for (const GroupRange& range : ranges_) fold_.push(range);
  LLMTRAIN_CHECK(fold_.sums().size() == 1, "the groups of a rank are a node of the tree");
  add_tree(values_.front(), values_, fold_.additions(fold_.sums().front()), *stream_);
  values_.resize(1);
  ranges_.assign(1, {ranges_.front().first, ranges_.back().last});
}

/// Ranks that share experts send each other the values of their own groups: each then has those of all.
void GradientReducer::exchange_groups(const UnitSegment& s) {
  const std::vector<Tensor> own = values_;
  const int64_t of_rank = options_.own_groups_at_once(), begin = group();
  const Tensor& memory = shared_values_[next_shared_];
  next_shared_ = (next_shared_ + 1) % shared_values_.size();
  std::vector<Communicator::Message> sends, receives;
  values_.clear();
  ranges_.clear();
  int64_t at = 0;
  for (int rank = 0; rank < options_.expert_size; ++rank) {
    const int64_t first = begin + rank * of_rank;
    if (first >= schedule_.groups) break;
    const GroupRange groups{first, std::min(first + of_rank, schedule_.groups)};
    size_t index = 0;
    const auto add = [&](const GroupRange& range) {
      ranges_.push_back(range);
      if (rank == options_.expert_rank) return values_.push_back(own[index++]);
      values_.push_back(memory.rows(at, s.elements()));
      at += s.elements();
      receives.push_back({values_.back(), rank});
    };
    if (plan_.tree()) {
      add(groups);
    } else {
      for (int64_t group = groups.first; group < groups.last; ++group) add({group, group + 1});
    }
  }
  for (int rank = 0; rank < options_.expert_size; ++rank) {
    for (const Tensor& value : own) {
      if (rank != options_.expert_rank) sends.push_back({value, rank});
    }
  }
  Transfer transfer = [&] {
    const TrafficScope scope(TrafficAxis::expert);
    return sharing_->send_and_receive(sends, receives, *stream_);
  }();
  transfer.finish(*stream_, [this] { add_arrived(); });
}

/// Exchanges a segment's gradient of this round, or adds it to those of this rank's run, which it exchanges at the end.
void GradientReducer::start_exchange(int unit, size_t segment) {
  take_groups(unit, segment);
  if (replays_) return;
  if (options_.size == 1) {
    if (sums_) sums_->add(unit, segment, ranges_, values_, *stream_);
    return;
  }
  if (run_sums_ && group() >= 0) run_sums_->add(unit, segment, ranges_, values_, *stream_);
  if (!schedule_.exchanges(round_)) return;
  if (run_sums_) {
    const int64_t nodes = node_count(schedule_.exchanged(round_, options_.rank), schedule_.groups);
    values_.clear();
    for (int64_t i = 0; i < nodes; ++i) values_.push_back(run_sums_->sum(unit, segment, static_cast<size_t>(i)));
  }
  if (exchanges_.full()) complete_oldest();
  exchanges_.begin(unit, segment, values_);
  buffers_.begin_exchange(unit, segment);
}

/// Starts those of the unit's exchanges that are not among the first `count` yet started.
void GradientReducer::start_exchanges(int unit, size_t count) {
  size_t& started = at(unit).started;
  while (started < count) start_exchange(unit, units_[unit].order[started++]);
}

/// A segment's block of rows is written.
void GradientReducer::end_rows(int unit, size_t segment) {
  const UnitState& u = units_[unit];
  Progress& p = at(unit);
  if (!last_ || u.by_rows == 0) return;
  p.written[segment] = 1;
  while (p.started < u.by_rows && p.written[u.order[p.started]] != 0) {
    const size_t next = u.order[p.started];
    start_exchanges(unit, p.started + 1);
    if (buffers_.part_count(unit) > 1) buffers_.close(unit, buffers_.part_of(unit, next));
  }
  complete_arrived();
}

void GradientReducer::complete_oldest() {
  const GradientExchanges::Completed done = exchanges_.complete_oldest();
  buffers_.end_exchange(done.unit, done.segment);
}

void GradientReducer::complete_arrived() {
  add_arrived();
  while (exchanges_.oldest_is_complete()) complete_oldest();
}

void GradientReducer::reduce(int unit) {
  complete_arrived();
  if (!last_) return;
  const UnitState& u = units_[unit];
  Progress& p = at(unit);
  LLMTRAIN_CHECK(replays_ || p.reduced == round_, fmt::format("{} is reduced once in a round", u.spec.name));
  LLMTRAIN_CHECK(p.open || group_of(unit) < 0, fmt::format("{} has no gradient to reduce", u.spec.name));
  start_exchanges(unit, u.segments.size());
  if (!replays_) ++p.reduced;
  p.started = 0;
  p.open = false;
  std::ranges::fill(p.written, uint8_t{0});
  for (size_t part = 0; part < buffers_.part_count(unit); ++part) buffers_.close(unit, part);
  complete_arrived();  // the last rank to arrive has all data at once
}

void GradientReducer::finish() {
  while (!exchanges_.empty()) complete_oldest();
  for (int unit = 0; unit < units_.size(); ++unit) {
    LLMTRAIN_CHECK(
        !units_[unit].trained() || at(unit).reduced == rounds(),
        fmt::format("{} was reduced in {} of {} rounds", units_[unit].spec.name, at(unit).reduced, rounds()));
  }
  if (gathers_sums_) gather_sums();
}

void GradientReducer::gather_sums() {
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitState& u = units_[unit];
    for (size_t i = 0; i < u.segments.size() && u.trained(); ++i) {
      const Tensor mine = buffers_.memory(unit, i, u.segments[i].begin, u.segments[i].end);
      copy_on_device(mine.data, sums_->total(unit, i).data, mine.bytes(), *stream_);
    }
  }
  gathers_.gather_all(true, [this](int unit) { return buffers_.memory(unit, 0); });
  gathers_.finish_all();
}

Tensor GradientReducer::sum(int unit, size_t segment) const {
  if (!gathers_sums_ && sums_) return sums_->total(unit, segment);
  const UnitSegment& s = units_[unit].segments[segment];
  return buffers_.memory(unit, segment, s.first, s.last);
}

uint64_t GradientReducer::pass_key() const {
  const uint64_t key = (first_ ? 1u : 0u) | (last_ ? 2u : 0u);
  return last_ && sums_ ? key | sums_->key(group()) << 2 : key;
}

void GradientReducer::mark_passes_done() {
  for (int unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].trained()) continue;
    at(unit).open = !last_;
    buffers_.mark(unit, !last_);
    if (last_) ++at(unit).reduced;
  }
}

void GradientReducer::repeat_micro_batch() {
  for (int unit = 0; unit < units_.size() && last_; ++unit) {
    if (units_[unit].trained()) --at(unit).reduced;
  }
}

}  // namespace llmtrain
