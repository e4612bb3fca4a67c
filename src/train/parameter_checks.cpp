#include "train/parameter_checks.hpp"

#include <cmath>

#include "core/philox.hpp"
#include "kernels/reduce.hpp"

namespace llmtrain {

uint64_t ParameterHash::compute() {
  unit_hashes_.assign(params_.units().model_units().size(), 0);
  for (ParamStore::StatePass pass = params_.state_pass(ParamStore::Access::masters); pass.next();) {
    const ParamStore::Shard& shard = pass.shard();
    const UnitRange owned = shard.part_of(params_.units().counted(pass.unit(), pass.segment()));
    if (owned.begin >= owned.end) continue;
    const Tensor part = shard.master().rows(owned.begin - shard.begin, owned.end - owned.begin);
    unit_hashes_[static_cast<size_t>(params_.units().model_unit(pass.unit()))] +=
        chunked_hash(part, owned.begin, stream_);
  }
  communicator_.sum(unit_hashes_);
  uint64_t all = 0;
  for (uint64_t h : unit_hashes_) {  // the order matters, so that units of equal content do not cancel
    const Philox4 mixed = philox4x32(all, h, 0);
    all = (uint64_t{mixed.v[1]} << 32) | mixed.v[0];
  }
  return all;
}

uint64_t ParameterHash::after(int64_t completed) {
  if (known_.first != completed) known_ = {completed, compute()};
  return known_.second;
}

bool state_is_finite(ParamStore& params, Communicator& communicator, Stream& stream) {
  ExactSum squares;
  for (ParamStore::StatePass pass = params.state_pass(ParamStore::Access::all); pass.next();) {
    const UnitRange own = pass.shard().part_of(params.units().counted(pass.unit(), pass.segment()));
    if (own.begin >= own.end) continue;
    for (const Tensor& plane : pass.shard().part(own.begin, own.end).states) {
      if (!plane.empty() && plane.dtype == DType::f32) sum_of_squares(squares, plane, stream);
    }
  }
  communicator.sum(squares);
  return std::isfinite(squares.value());
}

}  // namespace llmtrain
