#include "roles/teacher.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

void Teacher::plan(Arena& arena, int64_t block_rows) {
  constexpr MemoryCategory category = MemoryCategory::activations;
  const int64_t columns = model_ != nullptr ? model_->shape().config.vocab_size : options_.vocabulary;
  if (model_ != nullptr || options_.top_k == 0) {
    arena.add(logits_, category, "teacher.logits", DType::f32, {block_rows, columns});
  }
  if (options_.top_k == 0) return;
  arena.add(best_.tokens, category, "teacher.tokens", DType::i32, {block_rows, options_.top_k});
  arena.add(best_.logp, category, "teacher.logp", DType::f32, {block_rows, options_.top_k});
  arena.add(best_.rest, category, "teacher.rest", DType::f32, {block_rows});
}

void Teacher::begin(const Context& ctx, const Batch* rows, const HostBatch& host, int64_t first_row) {
  if (runs_) {
    own_.emplace(Context{model_->params(), ctx.arena, ctx.stream, ctx.seed, ctx.step, false});
    own_->adapters = false;
    own_->role = ProductRole::prefill;  // the bits of a row do not depend on the other rows
    own_->rows = ctx.rows;
    return model_->actor().forward(*own_, rows);
  }
  if (rows == nullptr) return;
  LLMTRAIN_CHECK(file_.has_value(), "a teacher without a model has a file");
  file_->find_tokens(host, tokens_);
  tokens_.resize(static_cast<size_t>(std::max(first_row + rows->tokens, std::ssize(tokens_))), -1);
  tokens_.erase(tokens_.begin(), tokens_.begin() + first_row);
}

TeacherRows Teacher::rows_of(int64_t first, int64_t count, Stream& stream) {
  const TeacherRows best = best_.rows(0, count);
  if (runs_) {
    Tensor all = logits_.rows(0, count);
    Head::each_run(count, model_->actor().head().blocks.front().block_rows(count), [&](int64_t begin, int64_t rows) {
      model_->actor().logits_of_rows(*own_, first + begin, all.rows(begin, rows));
    });
    log_probabilities(all, options_.vocabulary, options_.terms.temperature, stream);
    if (options_.top_k == 0) return {{}, all, {}};
    top_tokens(best, all, options_.vocabulary, stream);
    return best;
  }
  stream.synchronize();  // the last copies have read the values
  file_->read(std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), values_);
  const auto upload = [&](const Tensor& to, const auto& from) {
    copy_to_device(to.data, from.data(), static_cast<int64_t>(from.size() * sizeof from[0]), stream);
  };
  if (options_.top_k == 0) {
    const Tensor all(logits_.data, DType::f32, {count, options_.vocabulary});
    upload(all, values_.logp);
    return {{}, all, {}};
  }
  upload(best.tokens, values_.tokens);
  upload(best.logp, values_.logp);
  upload(best.rest, values_.rest);
  return best;
}

void Teacher::differentiate(const LogitBlock& block, Stream& stream) {
  const TeacherRows teacher = rows_of(block.first, block.logits.dim(0), stream);
  distillation_backward(block.dlogits, block.logits, block.batch.targets, block.statistics, block.cotangents, teacher,
                        options_.vocabulary, block.vocabulary, options_.terms, block.softcap, stream);
}

}  // namespace llmtrain
