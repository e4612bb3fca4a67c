#include "layers/sharing/shared_gradients.hpp"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.hpp"

namespace llmtrain {

namespace {

/// Elements of a parameter with a gap up to the next cache line.
int64_t padded_elements(const SharedParam& param) {
  constexpr int64_t line = 16;
  return (param.rows * param.columns + line - 1) / line * line;
}

}  // namespace

int64_t SharedGradients::elements_of(const std::vector<SharedParam>& params) {
  int64_t elements = 0;
  for (const SharedParam& param : params) elements += padded_elements(param);
  return elements;
}

Tensor ParamRef::gradient(Context& ctx) const {
  if (!is_trained()) return {};
  const Tensor shared = ctx.shared == nullptr ? Tensor() : ctx.shared->find(*this, ctx.row_block);
  return shared.empty() ? ctx.params.gradient(unit, param) : shared;
}

bool ParamRef::accumulates(const Context& ctx) const {
  const bool shared = ctx.shared != nullptr && !ctx.shared->find(*this, ctx.row_block).empty();
  return !shared && ctx.accumulate();
}

SharedGradients::SharedGradients(Context& ctx, Arena::Frame& frame, std::vector<SharedParam> params, int64_t groups)
    : ctx_(ctx), params_(std::move(params)), groups_(groups), elements_(elements_of(params_)) {
  if (params_.empty()) return;
  sum_.emplace(*ctx.tensor, frame, groups_, elements_);
}

void SharedGradients::begin_block() {
  if (!sum_) return;
  current_ = sum_->next();
  fill_zero(current_.data, current_.bytes(), ctx_.stream);
  ctx_.shared = this;
}

void SharedGradients::end_block() {
  ctx_.shared = nullptr;
  if (sum_) sum_->add(ctx_.stream);
}

void SharedGradients::finish() {
  if (!sum_) return;
  const Tensor all = sum_->finish(ctx_.stream);
  const auto add = [&](int64_t group) {
    for (size_t i = 0; i < params_.size(); ++i) {
      add_into(params_[i].ref.gradient(ctx_), part(all, i, group), !ctx_.accumulate(), ctx_.stream);
    }
  };
  if (groups_ == 1) return add(0);
  ctx_.each_row_block(0, [&](int64_t, int64_t) { add(ctx_.row_block); });
}

Tensor SharedGradients::part(const Tensor& of_all, size_t index, int64_t group) const {
  int64_t first = 0;
  for (size_t i = 0; i < index; ++i) first += padded_elements(params_[i]);
  const SharedParam& param = params_[index];
  const Tensor flat(of_all.rows(group, 1).data, DType::f32, {elements_});
  const Tensor own = flat.rows(first, param.rows * param.columns);
  return param.columns == 1 ? own : own.reshaped({param.rows, param.columns});
}

Tensor SharedGradients::find(const ParamRef& param, int64_t group) const {
  const auto found = std::ranges::find(params_, param, &SharedParam::ref);
  if (found == params_.end()) return {};
  return part(current_, static_cast<size_t>(found - params_.begin()), groups_ == 1 ? 0 : group);
}

int64_t SharedGradients::scratch_bytes(const TensorShare& share, const std::vector<SharedParam>& params,
                                       int64_t groups) {
  return params.empty() ? 0 : BlockSum::scratch_bytes(share, groups * elements_of(params));
}

}  // namespace llmtrain
