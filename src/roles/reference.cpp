#include "roles/reference.hpp"

#include <algorithm>
#include <cmath>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "objectives/document_objective.hpp"

namespace llmtrain {

namespace {

constexpr int64_t piece_elements = int64_t{1} << 18;  ///< a multiple of the chunk size

}  // namespace

Context Reference::own_context(const Context& ctx) const {
  Context own{model_->params(), ctx.arena, ctx.stream, ctx.seed, ctx.step, false};
  own.adapters = false;
  own.role = ctx.role;
  own.rows = ctx.rows;
  return own;
}

void Reference::score(const Context& ctx, const Batch& batch, const Tensor& logp, const Tensor& sums,
                      DocumentColumns& documents, DataPart part) {
  if (model_ != nullptr) {
    Context own = own_context(ctx);
    llmtrain::score(model_->actor(), own, &batch, {logp, {}, {}, {}});
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
  llmtrain::score(model_->actor(), own, nullptr, {});
}

ReferenceSync::ReferenceSync(ParamStore& policy, ParamStore& reference, const ReferenceSyncOptions& options)
    : policy_(policy),
      reference_(reference),
      options_(options),
      values_(static_cast<size_t>(piece_elements)),
      policy_values_(static_cast<size_t>(piece_elements)) {
  const StatePlanes& states = policy.units().options().states;
  const auto found = std::ranges::find(states, plane().name, &StatePlane::name);
  LLMTRAIN_CHECK(found != states.end(), "the policy's state has a plane for the reference");
  plane_ = static_cast<size_t>(found - states.begin());
  LLMTRAIN_CHECK(policy.units().size() == reference.units().size(), "policy and reference have the same units");
}

void ReferenceSync::each_piece(const std::function<void(int, int64_t, int64_t)>& work) const {
  for (int unit = 0; unit < policy_.units().size(); ++unit) {
    if (!policy_.units()[unit].trained()) continue;
    report_progress();
    for (size_t segment = 0; segment < policy_.units()[unit].segments.size(); ++segment) {
      const ParamStore::Shard shard = policy_.shard(unit, segment);
      for (int64_t begin = shard.begin; begin < shard.end; begin += piece_elements) {
        work(unit, begin, std::min(piece_elements, shard.end - begin));
      }
    }
  }
}

void ReferenceSync::fill_plane(Stream& stream) {
  policy_.begin_change();
  each_piece([&](int unit, int64_t begin, int64_t count) {
    reference_.read_state(unit, master_plane, begin, count, values_.data(), stream);
    policy_.write_state(unit, plane_, begin, count, values_.data(), stream);
  });
}

void ReferenceSync::restore(Communicator& communicator, Stream& stream) {
  reference_.publish_weights();  // what was gathered is forgotten
  communicator.barrier();        // and no rank reads this one's weights
  each_piece([&](int unit, int64_t begin, int64_t count) {
    policy_.read_state(unit, plane_, begin, count, values_.data(), stream);
    reference_.write_state(unit, master_plane, begin, count, values_.data(), stream);
  });
  reference_.publish_weights();
}

void ReferenceSync::move(Communicator& communicator, Stream& stream) {
  policy_.begin_change();
  const float kept = 1 - options_.alpha;
  each_piece([&](int unit, int64_t begin, int64_t count) {
    policy_.read_state(unit, master_plane, begin, count, policy_values_.data(), stream);
    policy_.read_state(unit, plane_, begin, count, values_.data(), stream);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      values_[i] = std::fma(options_.alpha, policy_values_[i], kept * values_[i]);
    }
    policy_.write_state(unit, plane_, begin, count, values_.data(), stream);
  });
  restore(communicator, stream);
}

}  // namespace llmtrain
