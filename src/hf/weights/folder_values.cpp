#include "hf/weights/folder_values.hpp"

#include <algorithm>
#include <utility>

#include "core/files/folder_handle.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/stored_slice.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

FolderValues::FolderValues(const std::string& folder, const DecoderShape& shape, std::vector<UnitSpec> units)
    : units_(std::move(units)) {
  const FolderHandle handle = FolderHandle::open(folder);
  index_ = read_model_index(handle, shape);
  match_ = match_weights(shape, units_, index_);
  for (const WeightIndex::File& file : index_.files) files_.push_back(handle.open_to_read(file.name));
}

void FolderValues::read(int unit, int64_t begin, int64_t end, float* out) const {
  const UnitSpec& spec = units_[static_cast<size_t>(unit)];
  const UnitLayout layout(spec);
  for (const SliceSource& source : match_.slices) {
    if (source.unit != unit) continue;
    const ParamSpec& param = spec.params[static_cast<size_t>(source.param)];
    const ParamSlice& slice = param.slices[static_cast<size_t>(source.slice)];
    const WeightIndex::Tensor& tensor = index_.tensors[source.tensor];
    const int64_t rows = slice.transposed ? slice.rows : std::min(slice.rows, tensor.shape.front());
    const int64_t offset = layout.offset(source.param, source.slice);
    const int64_t first = std::max(begin, offset), last = std::min(end, offset + rows * param.columns);
    if (first >= last) continue;
    const auto file_of = [&](size_t number) -> const FileHandle& { return files_[number]; };
    const StoredSlice stored = stored_slice(tensor, file_of, rows, param.columns, slice.transposed);
    read_slice(stored, first - offset, last - offset, out + (first - begin));
  }
}

}  // namespace llmtrain
