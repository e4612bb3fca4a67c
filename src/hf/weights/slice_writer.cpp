#include "hf/weights/slice_writer.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "params/param_store.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {
namespace {

constexpr int64_t gathered_elements = int64_t{1} << 22;

}  // namespace

void SliceWriter::write(int unit, int64_t offset, const ParamSpec& param, const ParamSlice& slice,
                        const std::vector<std::string>& names) {
  const int64_t elements = slice.rows * param.columns;
  if (slice.transposed && writer_ != nullptr) turned_.resize(static_cast<size_t>(elements));
  for (int64_t at = 0; at < elements; at += gathered_elements) {
    const int64_t count = std::min(gathered_elements, elements - at);
    values_.resize(static_cast<size_t>(count));
    if (cancellable_) throw_if_stopping(communicator_, "while the weights were exported");
    try {
      gather_(unit, offset + at, offset + at + count, values_.data());
    } catch (const UserError&) {
      if (!failure_) failure_ = std::current_exception();
    }
    if (writer_ == nullptr) continue;
    if (slice.transposed) {
      turn(at, slice.rows, param.columns);
    } else {
      each_external_run(block_of(param, slice), param.columns, at, at + count, [&](const ExternalRun& run) {
        save(names, run.first, values_.data() + (run.begin - at), run.end - run.begin);
      });
    }
  }
  if (slice.transposed && writer_ != nullptr) save(names, 0, turned_.data(), elements);
}

void SliceWriter::save(const std::vector<std::string>& names, int64_t first, const float* values, int64_t count) {
  keep_failure([&] {
    for (const std::string& name : names) writer_->write(name, first, values, count);
  });
}

void SliceWriter::keep_failure(const std::function<void()>& work) {
  if (failure_) return;
  try {
    work();
  } catch (const UserError&) {
    failure_ = std::current_exception();
  }
}

/// values_ are elements of a [rows, columns] matrix, starting at `at`.
void SliceWriter::turn(int64_t at, int64_t rows, int64_t columns) {
  int64_t r = at / columns, c = at % columns;
  for (const float value : values_) {
    turned_[static_cast<size_t>(c * rows + r)] = value;
    if (++c < columns) continue;
    c = 0;
    ++r;
  }
}

ParamSlice exported_slice(const DecoderShape& shape, const ParamSlice& slice) {
  ParamSlice exported = slice;
  if (!shape.has_row_per_token(slice.name)) return exported;
  exported.rows = shape.tokens;
  if (!slice.block) return exported;
  exported.rows = std::clamp<int64_t>(shape.tokens - slice.block->first_row, 0, slice.rows);
  exported.block->rows = shape.tokens;
  return exported;
}

std::vector<UnitSpec> units_of(const ParamStore& params) {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(params.units().size()));
  for (int unit = 0; unit < params.units().size(); ++unit) units.push_back(params.units()[unit].spec);
  return units;
}

}  // namespace llmtrain
