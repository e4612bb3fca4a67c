#include "params/param_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

namespace {

void check_spec(const UnitSpec& unit) {
  LLMTRAIN_CHECK(!unit.params.empty(), fmt::format("unit {} has no parameters", unit.name));
  for (const ParamSpec& param : unit.params) {
    int64_t row = 0;
    for (const ParamSlice& slice : param.slices) {
      LLMTRAIN_CHECK(slice.first_row == row && slice.rows > 0,
                     fmt::format("the slices of {} do not follow each other", param.name));
      row += slice.rows;
    }
    LLMTRAIN_CHECK(row == param.rows, fmt::format("the slices of {} do not cover its rows", param.name));
    LLMTRAIN_CHECK(!unit.quantization || (!unit.trained && param.decay && !param.slices.empty() &&
                                          param.slices.size() <= QuantizedMatrix::max_slices),
                   fmt::format("{} cannot be stored in fewer bits: it must be a frozen matrix", param.name));
  }
}

/// Bytes of a chunk by offloaded kind: the planes of the state, and the weights.
std::vector<int64_t> offloaded_widths(const ParamPolicy& policy, const ParamStoreOptions& options) {
  std::vector<int64_t> widths;
  for (const StatePlane& plane : options.states) {
    widths.push_back(plane.by_tensor() ? OffloadLayout::by_tensor : plane.bytes(chunk_elements));
  }
  widths.push_back(chunk_elements * static_cast<int64_t>(size_of(options.compute)));
  for (size_t kind = 0; kind < widths.size(); ++kind) {
    if (!policy.offloaded[kind]) widths[kind] = 0;
  }
  return widths;
}

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

}  // namespace

void fill_range(const Tensor& out, const Initializer& init, uint64_t key, int64_t first, Stream& stream) {
  switch (init.kind) {
    case Initializer::Kind::zeros:
      return fill(out, 0, stream);
    case Initializer::Kind::ones:
      return fill(out, 1, stream);
    case Initializer::Kind::normal:
      return fill_normal(out, init.width, key, first, stream);
    case Initializer::Kind::uniform:
      return fill_uniform(out, init.width, key, first, stream);
  }
}

ParamStore::State::State(std::vector<UnitSpec> specs, const ParamStoreOptions& given)
    : options(given), policy(given), offloaded(offloaded_widths(policy, given), given.offload_piece) {
  check_states(given.states);
  LLMTRAIN_CHECK(given.offload_piece % chunk_elements == 0, "pieces are cut between chunks");
  LLMTRAIN_CHECK(is_compute_type(given.compute), "weights are fp32, bf16 or fp16");
  LLMTRAIN_CHECK(given.size > 0 && given.rank >= 0 && given.rank < given.size, "the rank is not one of the job's");
  LLMTRAIN_CHECK(!specs.empty(), "a model has at least one unit");
  for (UnitSpec& spec : specs) {
    check_spec(spec);
    add_segments(units.emplace_back(std::move(spec), given));
  }
  for (size_t i = 0; i < rings; ++i) {
    std::vector<int64_t> sizes;
    for (const UnitState& u : units) {
      const bool in_ring = !whole_weights_of(u) && ring_of(u) == i;
      sizes.push_back(in_ring ? u.storage.values(u.layout.elements()) : 0);
    }
    weight_rings[i] = plan_ring(sizes, std::vector<uint8_t>(units.size(), given.keeps_gathered ? 1 : 0));
  }
  plan_gradient_ring();
  gathers.resize(units.size());
}

void ParamStore::State::add_segments(UnitState& u) {
  const std::vector<int64_t>& borders = u.layout.segments();
  std::vector<ShardBorders> updated;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    UnitSegment& s = u.segments.emplace_back();
    s.first = borders[i];
    s.last = borders[i + 1];
    const ShardBorders own = borders_of_shard(s.elements(), options.rank, options.size);
    s.begin = s.first + own.begin;
    s.end = s.first + own.end;
    s.update_begin = policy.whole_state ? s.first : s.begin;
    s.update_end = policy.whole_state ? s.last : s.end;
    if (u.trained()) updated.push_back({s.update_begin, s.update_end});
  }
  u.planes = UnitPlanes(options.states, u.spec, u.layout);
  offloaded.add(updated, u.planes);
  order_segments(u);
}

void ParamStore::State::order_segments(UnitState& u) {
  const bool divided = u.segments.size() > 1;
  std::vector<uint8_t> by_rows(u.segments.size());
  for (size_t p = 0; divided && p < u.spec.params.size(); ++p) {
    const int64_t begin = u.layout.offset(static_cast<int>(p)), end = begin + u.spec.params[p].numel();
    for (size_t i = 0; i < by_rows.size() && u.spec.params[p].by_rows; ++i) {
      if (u.segments[i].first < end && begin < u.segments[i].last) by_rows[i] = 1;
    }
  }
  for (size_t i = by_rows.size(); i-- > 0;) {
    if (by_rows[i] != 0) u.order.push_back(i);
  }
  u.by_rows = u.order.size();
  for (size_t i = 0; i < by_rows.size(); ++i) {
    if (by_rows[i] == 0) u.order.push_back(i);
  }
}

UnitState::UnitState(UnitSpec s, const ParamStoreOptions& options)
    : spec(std::move(s)), layout(spec, options.segment_elements), storage{"weights", options.compute} {
  if (quantized()) storage = {"weights", DType::u8, chunk_bytes(*spec.quantization)};
}

std::string UnitState::name_of(const UnitSegment& segment) const {
  if (segments.size() == 1) return spec.name;
  return fmt::format("{}, segment {}", spec.name, &segment - segments.data());
}

const UnitSegment& ParamStore::State::segment_of(const UnitState& u, int64_t begin, int64_t count) const {
  const auto next = std::ranges::upper_bound(u.segments, begin, {}, &UnitSegment::first);
  LLMTRAIN_CHECK(next != u.segments.begin(), "state of another unit");
  const UnitSegment& s = *std::prev(next);
  LLMTRAIN_CHECK(begin >= s.update_begin && begin + count <= s.update_end, "state of another rank");
  return s;
}

void ParamStore::State::plan_gradient_ring() {
  std::vector<int64_t> elements;
  std::vector<uint8_t> apart;
  for (UnitState& u : units) {
    if (!policy.gradient_ring || u.by_rows == 0) {
      u.parts.push_back({0, u.layout.elements()});
      elements.push_back(u.trained() ? u.layout.elements() : 0);
      apart.push_back(u.spec.spans_backward ? 1 : 0);
      continue;
    }
    // Parts that are not by rows are written all the time until reduce(): they lie outside the ring.
    const auto rest = u.order.begin() + static_cast<ptrdiff_t>(u.by_rows);
    bool extends = false;
    for (size_t i = 0; i < u.segments.size(); ++i) {
      UnitSegment& s = u.segments[i];
      const bool by_rows = std::find(rest, u.order.end(), i) == u.order.end();
      if (by_rows || !extends) {
        u.parts.push_back({s.first, s.first});
        elements.push_back(0);
        apart.push_back(by_rows ? 0 : 1);
      }
      extends = !by_rows;
      s.part = u.parts.size() - 1;
      u.parts.back().last = s.last;
      elements.back() = u.trained() ? u.parts.back().elements() : 0;
    }
  }
  gradient_ring = plan_ring(elements, apart, options.segment_elements);
  size_t i = 0;
  for (UnitState& u : units) {
    for (GradientPart& part : u.parts) part.in_ring = policy.gradient_ring && gradient_ring.own[i++] == 0;
  }
}

bool ParamStore::State::any_trained() const {
  return std::ranges::any_of(units, [](const UnitState& u) { return u.trained(); });
}

bool ParamStore::State::has_own_buffer(int unit) const {
  return weight_rings[ring_of(at(unit))].own[static_cast<size_t>(unit)] != 0;
}

UnitState& ParamStore::State::at(int unit) {
  LLMTRAIN_CHECK(unit >= 0 && static_cast<size_t>(unit) < units.size(), fmt::format("no unit {}", unit));
  return units[static_cast<size_t>(unit)];
}
const UnitState& ParamStore::State::at(int unit) const { return const_cast<State*>(this)->at(unit); }

Communicator& ParamStore::State::comm() const {
  LLMTRAIN_CHECK(communicator != nullptr, "the parameter store has not been started");
  return *communicator;
}

ParamStore::ParamStore(std::vector<UnitSpec> units, const ParamStoreOptions& options)
    : state_(std::make_unique<State>(std::move(units), options)) {}
ParamStore::~ParamStore() { state_->late_update.reset(); }  // its pass refers to this store

bool ParamStore::keeps_gathered() const { return !state_->policy.whole_weights && state_->options.keeps_gathered; }
int64_t ParamStore::gathers() const { return state_->gathered_units; }
int ParamStore::rank_count() const { return state_->options.size; }
int ParamStore::unit_count() const { return static_cast<int>(state_->units.size()); }
const UnitSpec& ParamStore::spec(int unit) const { return state_->at(unit).spec; }
const UnitLayout& ParamStore::layout(int unit) const { return state_->at(unit).layout; }

int64_t ParamStore::parameter_count() const {
  int64_t count = 0;
  for (const UnitState& u : state_->units) count += u.spec.parameters();
  return count;
}

int64_t ParamStore::trained_parameter_count() const {
  int64_t count = 0;
  for (const UnitState& u : state_->units) {
    if (!u.trained()) continue;
    count += u.spec.parameters();
    for (const ParamSpec& param : u.spec.params) {
      for (const ParamSlice& slice : param.slices) count -= slice.fixed ? slice.rows * param.columns : 0;
    }
  }
  return count;
}

ParamStore::Shard ParamStore::Shard::part(int64_t first, int64_t last) const {
  Shard cut = *this;
  const int64_t chunks = std::max<int64_t>((end - begin) / chunk_elements, 1);
  const auto narrow = [&](Tensor& t) {
    if (t.empty()) return;
    const int64_t per_chunk = t.numel() / chunks, at = (first - begin) * per_chunk, count = (last - first) * per_chunk;
    LLMTRAIN_CHECK(at % chunk_elements == 0 && count % chunk_elements == 0, "values of chunks are not divided");
    t = t.rows(at / chunk_elements, count / chunk_elements);
  };
  for (size_t p = 0; p < cut.states.size(); ++p) {
    Tensor& plane = cut.states[p];
    if (planes == nullptr) {
      narrow(plane);
    } else if (!plane.empty()) {
      plane = plane.rows(planes->values(p, begin, first), planes->values(p, first, last));
    }
  }
  narrow(cut.gradient);
  narrow(cut.weights);
  cut.begin = first;
  cut.end = last;
  return cut;
}

const StatePlanes& ParamStore::states() const { return state_->options.states; }
const UnitPlanes& ParamStore::planes(int unit) const { return state_->at(unit).planes; }

int64_t ParamStore::state_bytes() const {
  int64_t count = 0, bytes = 0;
  for (const UnitState& u : state_->units) count += u.trained() ? u.spec.parameters() : 0;
  for (const StatePlane& plane : states()) bytes += plane.bytes(count);
  for (const UnitState& u : state_->units) {
    for (size_t p = 0; p < states().size() && u.trained(); ++p) {
      if (states()[p].by_tensor()) bytes += u.planes.bytes(p, 0, u.layout.elements());
    }
  }
  return bytes;
}

int64_t ParamStore::segment_elements() const { return state_->options.segment_elements; }
size_t ParamStore::segment_count(int unit) const { return state_->at(unit).segments.size(); }

ParamStore::Shard ParamStore::shard(int unit, size_t segment) const {
  const UnitState& u = state_->at(unit);
  return state_->shard_of(u, u.segments.at(segment));
}

UnitRange ParamStore::owned(int unit, size_t segment) const {
  const UnitSegment& s = state_->at(unit).segments.at(segment);
  return {s.begin, s.end, false};
}

void ParamStore::initialize(uint64_t seed, bool frozen) {
  finish_update();
  for (StatePass pass(*this, Access::change); pass.next();) {
    const Shard& shard = pass.shard();
    initialize_range(shard, pass.unit(), seed);
    if (!shard.weights.empty() && shard.master().numel() > 0) cast(shard.weights, shard.master(), *state_->stream);
  }
  if (!frozen) return;
  for (int unit = 0; unit < unit_count(); ++unit) {
    if (trained(unit)) continue;
    spec(unit).quantization ? initialize_quantized(unit, seed) : initialize_frozen(unit, seed);
  }
  publish_weights();
}

/// Initialises the shard's masters.
void ParamStore::initialize_range(const Shard& shard, int unit, uint64_t seed) {
  const UnitState& u = state_->at(unit);
  for (size_t p = 0; p < u.spec.params.size(); ++p) {
    const ParamSpec& param = u.spec.params[p];
    for (const ParamSlice& slice : param.slices) {
      const int64_t offset = u.layout.offset(static_cast<int>(p), static_cast<int>(&slice - param.slices.data()));
      const int64_t begin = std::max(offset, shard.begin);
      const int64_t end = std::min(offset + slice.rows * param.columns, shard.end);
      if (begin >= end) continue;
      const uint64_t key = random_key(seed, RandomPurpose::initialization, hash_of_name(slice.name));
      fill_range(part_of(shard.master(), begin - shard.begin, end - shard.begin), param.init, key, begin - offset,
                 *state_->stream);
    }
  }
}

/// Rounds piece by piece, since a frozen unit has no master.
void ParamStore::initialize_frozen(int unit, uint64_t seed) {
  State& state = *state_;
  const UnitState& u = state.at(unit);
  const int64_t piece = std::min(state.options.offload_piece, u.layout.elements());
  const DeviceBuffer buffer(piece * static_cast<int64_t>(sizeof(float)));
  for (const UnitSegment& s : u.segments) {
    const Tensor to = state.stored(u, s);
    for (int64_t begin = s.update_begin; begin < s.update_end; begin += piece) {
      Shard shard{};
      shard.begin = begin;
      shard.end = std::min(begin + piece, s.update_end);
      shard.states[master_plane] = Tensor(buffer.data(), DType::f32, {shard.end - shard.begin});
      fill(shard.master(), 0, *state.stream);  // the padding
      initialize_range(shard, unit, seed);
      cast(part_of(to, shard.begin - s.update_begin, shard.end - s.update_begin), shard.master(), *state.stream);
    }
  }
  state.stream->synchronize();  // the buffer ends here
}

void ParamStore::publish_masters() {
  finish_update();
  State& s = *state_;
  for (int unit = 0; unit < unit_count() && s.policy.whole_state && s.options.size > 1; ++unit) {
    UnitState& u = s.at(unit);
    if (!u.trained()) continue;
    if (s.policy.offloaded[master_plane]) {
      share_masters(unit);
    } else {
      for (UnitSegment& segment : u.segments) {
        s.comm().all_gather(segment.master(), segment.borders, *s.stream).finish(*s.stream);
      }
    }
  }
  round_masters();
  publish_weights();
}

void ParamStore::gather_range(int unit, int64_t first, int64_t last, float* out) {
  finish_update();
  UnitState& u = state_->at(unit);
  LLMTRAIN_CHECK(first >= 0 && first <= last && last <= u.layout.elements(), "elements outside of " + u.spec.name);
  Communicator& communicator = state_->comm();
  const auto read = [&](int64_t begin, int64_t end) {
    read_state(unit, master_plane, begin, end - begin, out + (begin - first), *state_->stream);
  };
  if (state_->policy.whole_state) {
    for (const UnitSegment& s : u.segments) {
      const int64_t begin = std::max(first, s.first), end = std::min(last, s.last);
      if (begin < end) read(begin, end);
    }
    return;
  }
  for (size_t i = 0; i + 1 < u.borders.size(); ++i) {
    const int64_t begin = std::max(first, u.borders[i]), end = std::min(last, u.borders[i + 1]);
    if (begin >= end) continue;
    const int owner = static_cast<int>(i) % state_->options.size;
    if (owner == state_->options.rank) read(begin, end);
    communicator.broadcast(out + (begin - first), (end - begin) * static_cast<int64_t>(sizeof(float)), owner);
  }
}

}  // namespace llmtrain
