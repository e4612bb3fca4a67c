#include "params/unit_planes.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// The tensors of a unit, by offset.
std::vector<UnitPlanes::Tensor> tensors_of(const StatePlanes& planes, const UnitSpec& spec, const UnitLayout& layout) {
  std::vector<UnitPlanes::Tensor> tensors;
  if (!any_by_tensor(planes)) return tensors;
  for_each_slice(std::span(&spec, 1), [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    tensors.push_back({layout.offset(at.param, at.slice), values_per_chunk(planes, param, slice)});
  });
  std::ranges::sort(tensors, {}, &UnitPlanes::Tensor::offset);
  return tensors;
}

}  // namespace

bool any_by_tensor(const StatePlanes& planes) { return std::ranges::any_of(planes, &StatePlane::by_tensor); }

std::vector<int64_t> values_per_chunk(const StatePlanes& planes, const ParamSpec& param, const ParamSlice& slice) {
  std::vector<int64_t> values;
  for (const StatePlane& plane : planes) {
    values.push_back(plane.by_tensor() ? plane.of_tensor(param, slice) : plane.per_chunk);
    LLMTRAIN_CHECK(values.back() >= 0 && values.back() <= chunk_elements, "a plane has at most a value per element");
  }
  return values;
}

UnitPlanes::UnitPlanes(StatePlanes planes, const std::vector<Tensor>& tensors) : planes_(std::move(planes)) {
  if (!any_by_tensor(planes_)) return;
  for (const Tensor& tensor : tensors) {
    Run run{(tensor.offset + chunk_elements - 1) / chunk_elements, tensor.per_chunk, {}};
    for (size_t p = 0; p < planes_.size(); ++p) run.before.push_back(values_before(p, run.first));
    if (!runs_.empty() && runs_.back().first == run.first) runs_.pop_back();  // no chunk begins in that tensor
    runs_.push_back(std::move(run));
  }
}

UnitPlanes::UnitPlanes(StatePlanes planes, const UnitSpec& spec, const UnitLayout& layout)
    : UnitPlanes(planes, tensors_of(planes, spec, layout)) {}

const UnitPlanes::Run& UnitPlanes::run_of(int64_t chunk) const {
  const auto next = std::ranges::upper_bound(runs_, chunk, {}, &Run::first);
  LLMTRAIN_CHECK(next != runs_.begin(), "the first tensor of a unit begins its first chunk");
  return *std::prev(next);
}

int64_t UnitPlanes::values_before(size_t plane, int64_t chunk) const {
  if (runs_.empty()) return 0;
  const Run& run = run_of(chunk);
  return run.before[plane] + (chunk - run.first) * run.per_chunk[plane];
}

int64_t UnitPlanes::values(size_t plane, int64_t begin, int64_t end) const {
  if (!planes_[plane].by_tensor()) return planes_[plane].values(end - begin);
  LLMTRAIN_CHECK(begin % chunk_elements == 0 && end % chunk_elements == 0, "part of a chunk of " + planes_[plane].name);
  return values_before(plane, end / chunk_elements) - values_before(plane, begin / chunk_elements);
}

int64_t UnitPlanes::end_of_run(int64_t element, int64_t last) const {
  const auto next = std::ranges::upper_bound(runs_, element / chunk_elements, {}, &Run::first);
  return next == runs_.end() ? last : std::min(next->first * chunk_elements, last);
}

StatePlane UnitPlanes::at(size_t plane, int64_t element) const {
  StatePlane here = planes_[plane];
  if (here.by_tensor()) here.per_chunk = run_of(element / chunk_elements).per_chunk[plane];
  return here;
}

}  // namespace llmtrain
