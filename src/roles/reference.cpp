#include "roles/reference.hpp"

#include "core/error.hpp"
#include "objectives/document_objective.hpp"

namespace llmtrain {

Context Reference::own_context(const Context& ctx) const {
  Context own{model_->params(), ctx.arena, ctx.stream, ctx.seed, ctx.step, false};
  own.adapters = false;
  own.role = ctx.role;
  return own;
}

void Reference::score(const Context& ctx, const Batch& batch, const Tensor& logp, const Tensor& sums,
                      DocumentColumns& documents, DataPart part) {
  if (model_ != nullptr) {
    Context own = own_context(ctx);
    model_->actor().forward(own, &batch);
    model_->actor().score(own, &batch, {logp, {}, {}, {}});
    document_sums(documents.references, batch, logp, sums, ctx.stream);
    return;
  }
  const std::vector<double>& known = part == DataPart::train ? values_.train : values_.validation;
  documents.references.clear();
  for (const int64_t id : documents.ids) {
    LLMTRAIN_CHECK(id >= 0 && id < std::ssize(known), "a reference value for every document");
    documents.references.push_back(known[static_cast<size_t>(id)]);
  }
}

void Reference::run_idle(const Context& ctx) {
  if (model_ == nullptr) return;
  Context own = own_context(ctx);
  model_->actor().forward(own, nullptr);
  model_->actor().score(own, nullptr, {});
}

}  // namespace llmtrain
