// Units that are stored in fewer bits: records of chunks, which are sharded and gathered as weights are, and tables of
// their slices, which every rank has whole.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/philox.hpp"
#include "params/unit_state.hpp"
#include "params/slice_quantizer.hpp"

namespace llmtrain {

/// First value of a slice's table in UnitState::tables.
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

Tensor ParamStore::State::own_chunks(int unit, int64_t begin, int64_t count) const {
  const UnitState& u = at(unit);
  LLMTRAIN_CHECK(u.quantized() && begin % chunk_elements == 0 && count % chunk_elements == 0,
                 fmt::format("elements of {} must be whole records", u.spec.name));
  const UnitSegment& s = segment_of(u, begin, count);
  return u.stored_part(stored(u, s), begin, begin + count, s.update_begin);
}

void ParamStore::write_chunks(int unit, int64_t begin, int64_t count, const uint8_t* records, Stream& stream) {
  const Tensor to = state_->own_chunks(unit, begin, count);
  copy_to_device(to.data, records, to.bytes(), stream);
  stream.synchronize();
}

void ParamStore::read_chunks(int unit, int64_t begin, int64_t count, uint8_t* records, Stream& stream) const {
  const Tensor from = state_->own_chunks(unit, begin, count);
  copy_to_host(records, from.data, from.bytes(), stream);
  stream.synchronize();
}

void ParamStore::write_table(int unit, int param, int slice, std::span<const float> values, Stream& stream) {
  const UnitState& u = state_->at(unit);
  const int64_t begin = u.table_offset(param, slice), end = u.table_offset(param, slice + 1);
  LLMTRAIN_CHECK(static_cast<int64_t>(values.size()) == end - begin, "a table of scales of another size");
  if (values.empty()) return;
  const Tensor to = part_of(u.tables, begin, end);
  copy_to_device(to.data, values.data(), to.bytes(), stream);
  stream.synchronize();
}

std::vector<float> ParamStore::read_table(int unit, int param, int slice, Stream& stream) const {
  const UnitState& u = state_->at(unit);
  const int64_t begin = u.table_offset(param, slice), end = u.table_offset(param, slice + 1);
  std::vector<float> values(static_cast<size_t>(end - begin));
  if (values.empty()) return values;
  const Tensor from = part_of(u.tables, begin, end);
  copy_to_host(values.data(), from.data, from.bytes(), stream);
  stream.synchronize();
  return values;
}

/// Dequantises those of the elements that belong to a slice; the padding between slices is zero.
void ParamStore::read_dequantized(int unit, int64_t begin, int64_t count, float* out, Stream& stream) const {
  const UnitState& u = state_->at(unit);
  const Quantization& format = *u.spec.quantization;
  std::fill_n(out, count, 0.0f);
  for (int p = 0; p < static_cast<int>(u.spec.params.size()); ++p) {
    const ParamSpec& param = u.spec.params[static_cast<size_t>(p)];
    for (int s = 0; s < static_cast<int>(param.slices.size()); ++s) {
      const ParamSlice& slice = param.slices[static_cast<size_t>(s)];
      const int64_t offset = u.layout.offset(p, s), elements = slice.rows * param.columns;
      const int64_t first = std::max(begin, offset), last = std::min(begin + count, offset + elements);
      if (first >= last) continue;
      const int64_t from = first / chunk_elements * chunk_elements;
      const int64_t to = (last + chunk_elements - 1) / chunk_elements * chunk_elements;
      std::vector<uint8_t> records(static_cast<size_t>(u.storage.values(to - from)));
      read_chunks(unit, from, to - from, records.data(), stream);
      const std::vector<float> table = read_table(unit, p, s, stream);
      const StoredChunks stored{records.data(), (from - offset) / chunk_elements, table.data(), param.columns};
      dequantize_on_host(format, stored, first - offset, last - first, out + (first - begin));
    }
  }
}

/// Every rank forms the values that it stores, and scales of whole slices.
void ParamStore::initialize_quantized(int unit, uint64_t seed) {
  State& state = *state_;
  const UnitState& u = state.at(unit);
  for (int p = 0; p < static_cast<int>(u.spec.params.size()); ++p) {
    const ParamSpec& param = u.spec.params[static_cast<size_t>(p)];
    for (int s = 0; s < static_cast<int>(param.slices.size()); ++s) {
      const uint64_t key =
          random_key(seed, RandomPurpose::initialization, hash_of_name(param.slices[static_cast<size_t>(s)].name));
      SliceQuantizer quantizer(*this, unit, p, s);
      for (const ElementRange& range : quantizer.ranges(state.options.offload_piece)) {
        const int64_t count = range.end - range.begin;
        const DeviceBuffer buffer(count * static_cast<int64_t>(sizeof(float)));
        fill_range(Tensor(buffer.data(), DType::f32, {count}), param.init, key, range.begin, *state.stream);
        std::vector<float> values(static_cast<size_t>(count));
        copy_to_host(values.data(), buffer.data(), buffer.bytes(), *state.stream);
        state.stream->synchronize();
        quantizer.put(range, values.data(), *state.stream);
      }
      quantizer.finish(state.comm(), *state.stream);
    }
  }
}

}  // namespace llmtrain
