#include "params/unit_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/quantized_matrix.hpp"

namespace llmtrain {

namespace {

UnitSpec checked(UnitSpec unit) {
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
  return unit;
}

}  // namespace

ParamShard ParamShard::part(int64_t first, int64_t last) const {
  ParamShard cut = *this;
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

UnitState::UnitState(UnitSpec given, const ParamStoreOptions& options, const ParamPolicy& policy)
    : spec(checked(std::move(given))),
      layout(spec, options.segment_elements),
      planes(options.states, spec, layout),
      storage{"weights", options.compute},
      whole(policy.whole_weights || (!spec.trained && options.size == 1)) {
  if (quantized()) storage = {"weights", DType::u8, chunk_bytes(*spec.quantization)};
  add_segments(options, policy.whole_state);
  // Blocks of matrices that one rank has are written in turn, and what all blocks share between them: idle ranks would
  // not know in which order.
  const bool splits = options.tensor_blocks > 1 && spec.expert_block < 0;
  const bool several = splits && (spec.tensor_block < 0 || options.tensor_blocks > options.tensor_size);
  order_segments(!several);
}

void UnitState::add_segments(const ParamStoreOptions& options, bool whole_state) {
  const std::vector<int64_t>& ends = layout.segments();
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    UnitSegment& s = segments.emplace_back();
    s.first = ends[i];
    s.last = ends[i + 1];
    const ShardBorders own = borders_of_shard(s.elements(), options.rank, options.size);
    s.begin = s.first + own.begin;
    s.end = s.first + own.end;
    s.update_begin = whole_state ? s.first : s.begin;
    s.update_end = whole_state ? s.last : s.end;
  }
}

void UnitState::order_segments(bool reduces_rows) {
  const bool divided = segments.size() > 1 && reduces_rows;
  std::vector<uint8_t> in_rows(segments.size());
  for (size_t p = 0; divided && p < spec.params.size(); ++p) {
    const int64_t begin = layout.offset(static_cast<int>(p)), end = begin + spec.params[p].numel();
    for (size_t i = 0; i < in_rows.size() && spec.params[p].by_rows && !spec.params[p].early; ++i) {
      if (segments[i].first < end && begin < segments[i].last) in_rows[i] = 1;
    }
  }
  for (size_t i = in_rows.size(); i-- > 0;) {
    if (in_rows[i] != 0) order.push_back(i);
  }
  by_rows = order.size();
  for (size_t i = 0; i < in_rows.size(); ++i) {
    if (in_rows[i] == 0) order.push_back(i);
  }
}

void UnitState::set_borders(int size) {
  borders = layout.borders(size);
  for (const int64_t border : borders) stored_borders.push_back(storage.values(border));
  auto next = borders.begin();
  for (UnitSegment& s : segments) {
    for (int r = 0; r <= size; ++r) s.borders.push_back(next[r] - s.first);
    next += size;
  }
}

const ParamSpec& UnitState::param(int index) const {
  LLMTRAIN_CHECK(index >= 0 && static_cast<size_t>(index) < spec.params.size(),
                 "no such parameter in unit " + spec.name);
  return spec.params[static_cast<size_t>(index)];
}

std::string UnitState::name_of(const UnitSegment& segment) const {
  if (segments.size() == 1) return spec.name;
  return fmt::format("{}, segment {}", spec.name, &segment - segments.data());
}

const UnitSegment& UnitState::segment_of(int64_t begin, int64_t count) const {
  const auto next = std::ranges::upper_bound(segments, begin, {}, &UnitSegment::first);
  LLMTRAIN_CHECK(next != segments.begin(), "state of another unit");
  const UnitSegment& s = *std::prev(next);
  LLMTRAIN_CHECK(begin >= s.update_begin && begin + count <= s.update_end, "state of another rank");
  return s;
}

Tensor UnitState::view(const Tensor& flat, int index, int64_t first) const {
  const ParamSpec& of = param(index);
  const Tensor part = flat.rows(layout.offset(index) - first, of.numel());
  const bool vector = of.columns == 1 && !of.decay;  // a matrix may also have one column
  return vector ? part : part.reshaped({of.rows, of.columns});
}

int64_t UnitState::table_offset(int param, int slice) const {
  int64_t values = 0;
  for (int p = 0; p <= param && quantized(); ++p) {
    const ParamSpec& of = spec.params.at(static_cast<size_t>(p));
    const size_t end = p < param ? of.slices.size() : static_cast<size_t>(slice);
    for (size_t s = 0; s < end; ++s)
      values += llmtrain::table_values(*spec.quantization, of.slices[s].rows, of.columns);
  }
  return values;
}

int64_t UnitState::table_values() const {
  return table_offset(static_cast<int>(spec.params.size()) - 1, static_cast<int>(spec.params.back().slices.size()));
}

Tensor UnitState::records(int64_t begin, int64_t count) const {
  LLMTRAIN_CHECK(quantized() && begin % chunk_elements == 0 && count % chunk_elements == 0,
                 fmt::format("elements of {} must be whole records", spec.name));
  const UnitSegment& s = segment_of(begin, count);
  return stored_part(stored(s), begin, begin + count, s.update_begin);
}

Tensor UnitState::table(int param, int slice) const {
  if (tables.empty()) return tables;
  return part_of(tables, table_offset(param, slice), table_offset(param, slice + 1));
}

/// Dequantises those of the elements that belong to a slice; the padding between slices is zero.
void UnitState::read_dequantized(int64_t begin, int64_t count, float* out, Stream& stream) const {
  const Quantization& format = *spec.quantization;
  std::fill_n(out, count, 0.0f);
  for_each_slice(as_range(), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    const int64_t offset = layout.offset(at.param, at.slice), elements = slice.rows * param.columns;
    const int64_t first = std::max(begin, offset), last = std::min(begin + count, offset + elements);
    if (first >= last) return;
    const int64_t from = first / chunk_elements * chunk_elements;
    const int64_t to = (last + chunk_elements - 1) / chunk_elements * chunk_elements;
    std::vector<uint8_t> stored(static_cast<size_t>(storage.values(to - from)));
    read_tensor(stored.data(), records(from, to - from), stream);
    const Tensor scales = table(at.param, at.slice);
    std::vector<float> values(scales.empty() ? 0 : static_cast<size_t>(scales.numel()));
    if (!values.empty()) read_tensor(values.data(), scales, stream);
    const StoredChunks chunks{stored.data(), (from - offset) / chunk_elements, values.data(), param.columns};
    dequantize_on_host(format, chunks, first - offset, last - first, out + (first - begin));
  });
}

void write_tensor(const Tensor& to, const void* values, Stream& stream) {
  copy_to_device(to.data, values, to.bytes(), stream);
  stream.synchronize();
}

void read_tensor(void* values, const Tensor& from, Stream& stream) {
  copy_to_host(values, from.data, from.bytes(), stream);
  stream.synchronize();
}

UnitStates::UnitStates(std::vector<UnitSpec> specs, const ParamStoreOptions& options)
    : options_(options), policy_(options) {
  LLMTRAIN_CHECK(!specs.empty(), "a model has at least one unit");
  if (options_.model_units.empty()) options_.model_units = specs;
  units_.reserve(specs.size());
  for (UnitSpec& spec : specs) units_.emplace_back(std::move(spec), options_, policy_);
  number_units();
}

/// The store's units are some of the model's, in their order.
void UnitStates::number_units() {
  size_t next = 0;
  for (const UnitState& u : units_) {
    const auto is_same = [&](const UnitSpec& of_model) {
      return of_model.name == u.spec.name && of_model.has_same_blocks(u.spec);
    };
    while (next < model_units().size() && !is_same(model_units()[next])) ++next;
    LLMTRAIN_CHECK(next < model_units().size(), fmt::format("unit {} is not one of the model", u.spec.name));
    numbers_.push_back(static_cast<int>(next++));
  }
}

int UnitStates::store_unit(int64_t model_unit) const {
  const auto found = std::ranges::lower_bound(numbers_, model_unit);
  return found == numbers_.end() || *found != model_unit ? -1 : static_cast<int>(found - numbers_.begin());
}

int UnitStates::first_owner(int64_t model_unit) const {
  if (options_.ranks_of_blocks() == 1) return 0;
  const UnitSpec& unit = model_units()[static_cast<size_t>(model_unit)];
  const int64_t tensor = rank_of_block(unit.tensor_block, options_.tensor_blocks, options_.tensor_size);
  const int64_t expert = rank_of_block(unit.expert_block, options_.expert_blocks, options_.expert_size);
  return static_cast<int>(tensor + options_.tensor_size * expert);
}

const UnitState& UnitStates::operator[](int unit) const {
  LLMTRAIN_CHECK(unit >= 0 && unit < size(), fmt::format("no unit {}", unit));
  return units_[static_cast<size_t>(unit)];
}

UnitRange UnitStates::owned(int unit, size_t segment) const {
  const UnitSegment& s = (*this)[unit].segments.at(segment);
  return {s.begin, s.end, false};
}

UnitRange UnitStates::counted(int unit, size_t segment) const {
  UnitRange own = owned(unit, segment);
  if (!counts(unit)) own.end = own.begin;
  return own;
}

bool UnitStates::any_trained() const { return std::ranges::any_of(units_, &UnitState::trained); }

int64_t UnitStates::parameters() const {
  int64_t count = 0;
  for (const UnitSpec& unit : model_units()) count += unit.parameters();
  return count;
}

int64_t UnitStates::trained_parameters() const {
  int64_t count = 0;
  for_each_slice(model_units(), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    const bool trained = model_units()[static_cast<size_t>(at.unit)].trained && !slice.fixed;
    if (trained) count += slice.rows * param.columns;
  });
  return count;
}

int64_t UnitStates::state_bytes() const {
  int64_t count = 0, bytes = 0;
  for (const UnitSpec& unit : model_units()) count += unit.trained ? unit.parameters() : 0;
  for (const StatePlane& plane : options_.states) bytes += plane.bytes(count);
  if (!any_by_tensor(options_.states)) return bytes;
  for (const UnitSpec& unit : model_units()) {
    if (!unit.trained) continue;
    const UnitLayout layout(unit, options_.segment_elements);
    const UnitPlanes planes(options_.states, unit, layout);
    for (size_t p = 0; p < options_.states.size(); ++p) {
      if (options_.states[p].by_tensor()) bytes += planes.bytes(p, 0, layout.elements());
    }
  }
  return bytes;
}

}  // namespace llmtrain
