#include "params/initialize_units.hpp"

#include <algorithm>
#include <vector>

#include "core/philox.hpp"
#include "kernels/elementwise.hpp"
#include "params/slice_quantizer.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {

namespace {

void fill_random(const Tensor& out, const Initializer& init, uint64_t key, int64_t first, Stream& stream) {
  if (init.kind == Initializer::Kind::normal) return fill_normal(out, init.width, key, first, stream);
  fill_uniform(out, init.width, key, first, stream);
}

/// Fills `out`, elements [begin, begin + n) of a slice, as a function of the seed, the slice's name and the position in
/// the external tensor: a matrix has the same values in any number of blocks.
void fill_range(const Tensor& out, const ParamSpec& param, const ParamSlice& slice, int64_t begin, uint64_t seed,
                Stream& stream) {
  if (param.init.kind == Initializer::Kind::zeros) return fill(out, 0, stream);
  if (param.init.kind == Initializer::Kind::ones) return fill(out, 1, stream);
  const uint64_t key = random_key(seed, RandomPurpose::initialization, hash_of_name(slice.name));
  each_external_run(block_of(param, slice), param.columns, begin, begin + out.numel(), [&](const ExternalRun& run) {
    fill_random(part_of(out, run.begin - begin, run.end - begin), param.init, key, run.first, stream);
  });
}

}  // namespace

void initialize_range(const UnitState& u, int64_t begin, int64_t end, const Tensor& master, uint64_t seed,
                      Stream& stream) {
  for_each_slice(u.as_range(), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    const int64_t offset = u.layout.offset(at.param, at.slice);
    const int64_t first = std::max(offset, begin), last = std::min(offset + slice.rows * param.columns, end);
    if (first >= last) return;
    fill_range(part_of(master, first - begin, last - begin), param, slice, first - offset, seed, stream);
  });
}

/// Rounds piece by piece, since a frozen unit has no master.
void initialize_frozen(const UnitState& u, uint64_t seed, int64_t max_piece, Stream& stream) {
  const int64_t piece = std::min(max_piece, u.layout.elements());
  const DeviceBuffer buffer(piece * static_cast<int64_t>(sizeof(float)));
  for (const UnitSegment& s : u.segments) {
    const Tensor to = u.stored(s);
    for (int64_t begin = s.update_begin; begin < s.update_end; begin += piece) {
      const int64_t end = std::min(begin + piece, s.update_end);
      const Tensor master(buffer.data(), DType::f32, {end - begin});
      fill(master, 0, stream);  // the padding
      initialize_range(u, begin, end, master, seed, stream);
      cast(part_of(to, begin - s.update_begin, end - s.update_begin), master, stream);
    }
  }
  stream.synchronize();  // the buffer ends here
}

/// Every rank forms the values that it stores.
void initialize_quantized(const UnitState& u, uint64_t seed, int64_t piece, Communicator& communicator,
                          Stream& stream) {
  for_each_slice(u.as_range(), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    SliceQuantizer quantizer(u, at.param, at.slice);
    for (const ElementRange& range : quantizer.ranges(piece)) {
      const int64_t count = range.end - range.begin;
      const DeviceBuffer buffer(count * static_cast<int64_t>(sizeof(float)));
      fill_range(Tensor(buffer.data(), DType::f32, {count}), param, slice, range.begin, seed, stream);
      std::vector<float> values(static_cast<size_t>(count));
      copy_to_host(values.data(), buffer.data(), buffer.bytes(), stream);
      stream.synchronize();
      quantizer.put(range, values.data(), stream);
    }
    quantizer.finish(communicator, stream);
  });
}

}  // namespace llmtrain
