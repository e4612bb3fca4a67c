#pragma once
// The teacher of a distillation: distributions of a frozen model that runs in every pass, or that it gave before.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/arena.hpp"
#include "data/stream/batch_source.hpp"
#include "kernels/distillation.hpp"
#include "layers/context.hpp"
#include "layers/logit_loss.hpp"
#include "roles/model_set.hpp"
#include "roles/teacher_file.hpp"

namespace llmtrain {

struct TeacherOptions {
  DistillationTerms terms;
  int64_t vocabulary = 0;  ///< tokens that student and teacher have in common, its first ones
  int64_t top_k = 0;       ///< top tokens of the teacher that count; 0: all
  bool cached = false;     ///< its values of the data are in a file

  /// Sizes of the file of values for so many trained tokens.
  TeacherFileShape file_shape(int64_t samples, int64_t tokens) const { return {samples, tokens, vocabulary, top_k}; }
};

class Teacher : public LogitLoss {
 public:
  /// `model`: null if a file has all values.
  Teacher(const TeacherOptions& options, RoleModel* model) : options_(options), model_(model) {}

  const TeacherOptions& options() const { return options_; }
  /// Registers memory for blocks of at most so many rows.
  void plan(Arena& arena, int64_t block_rows);
  /// Values of all samples of the data, by number.
  void set(TeacherFile file) { file_.emplace(std::move(file)); }

  /// Begins a step. `written`: the student wrote its samples, of which a file has no values.
  void begin_step(bool written) { runs_ = model_ != nullptr && (written || !file_); }
  /// Begins a micro-batch, of which this rank has `rows`, from first_row on; null: an idle pass. The model runs
  /// forward, collectively where it is sharded.
  void begin(const Context& ctx, const Batch* rows, const HostBatch& host, int64_t first_row);
  void begin_idle(const Context& ctx) { begin(ctx, nullptr, HostBatch(), 0); }
  /// Calls f, in which the head of the student may ask for the loss. Collective where the model is sharded.
  template <class F>
  void teach(Context& ctx, const F& f) {
    ctx.logit_loss = this;
    with_head(f);
    ctx.logit_loss = nullptr;
  }
  /// Calls f, in which rows_of() may be called.
  template <class F>
  void with_head(const F& f) {
    if (!runs_) return f();
    model_->actor().with_head(*own_, f);
  }
  /// Distributions of rows [first, first + count) of this rank's, valid until the next call.
  TeacherRows rows_of(int64_t first, int64_t count, Stream& stream);
  void differentiate(const LogitBlock& block, Stream& stream) override;

 private:
  TeacherOptions options_;
  RoleModel* model_;
  std::optional<TeacherFile> file_;
  bool runs_ = true;
  std::optional<Context> own_;   ///< of the model's pass
  Tensor logits_;                ///< fp32 [block, columns]: of the model, or all tokens of the file
  TeacherRows best_;             ///< [block, k]
  std::vector<int64_t> tokens_;  ///< of the file, for this rank's rows
  TeacherValues values_;         ///< copies to the device read them
};

}  // namespace llmtrain
