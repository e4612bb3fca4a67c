// Distillation: a student learns the distributions of a frozen teacher (generalised knowledge distillation, Agarwal et
// al. 2024, arXiv:2306.13649).

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"
#include "methods/method.hpp"
#include "methods/roles.hpp"
#include "rollout/student_batches.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

namespace {

/// Says in what a tokenizer differs from the student's, where ids mean other tokens; empty: they mean the same ones.
std::string difference_from(const Tokenizer& student, const Tokenizer& teacher) {
  if (teacher.serialized() == student.serialized()) return {};
  const int64_t size = student.vocabulary_size(), own = teacher.vocabulary_size();
  if (own != size) return fmt::format("it has {} tokens, the student's {}", own, size);
  if (teacher.eos_id() != student.eos_id()) {
    return fmt::format("its EOS is token {}, the student's {}", teacher.eos_id(), student.eos_id());
  }
  for (int32_t id = 0; id < size; ++id) {
    if (teacher.is_special(id) && student.is_special(id)) continue;  // they may have other names
    const std::string theirs = teacher.token(id), ours = student.token(id);
    if (theirs != ours) {
      const auto text = [&](const Tokenizer& of) { return printable(of.decode_with_special(std::vector{id})); };
      return fmt::format("its token {} is {}, the student's {}", id, text(teacher), text(student));
    }
  }
  return {};
}

/// Number of tokens that student and teacher have in common. Throws UserError if these are not the same tokens.
int64_t common_tokens(const Config& config, const Dataset& data) {
  const RoleFolder& teacher = config.source.teacher.value();
  const int64_t student = softmax_rows(config.model, data), own = teacher.model.vocab_size;
  const auto refuse = [&](const std::string& what) {
    throw UserError(ExitCode::deck,
                    fmt::format("{}: {}: {}", config.provenance.where("distill.teacher"), teacher.model.path, what));
  };
  if (data.tokenizer != nullptr && !teacher.tokenizer_path.empty()) {
    const std::string difference = difference_from(*data.tokenizer, *load_tokenizer(teacher.tokenizer_path));
    if (!difference.empty()) {
      refuse(fmt::format("its tokenizer is another one than the student's: {}. {}", difference,
                         config.model.path.empty() ? "Set data.tokenizer to this folder"
                                                   : "Choose a teacher with the student's tokenizer"));
    }
  }
  if (own < data.vocabulary_size) {
    refuse(fmt::format("its vocabulary has {} tokens, fewer than the {} of the student's tokenizer", own,
                       data.vocabulary_size));
  }
  // Embeddings of one tokenizer can have different numbers of rows of padding.
  if (teacher.tokenizer_path.empty() && own != student && own != config.model.vocab_size) {
    refuse(
        fmt::format("it has {} tokens and no tokenizer, and the student has {} tokens: put the tokenizer's files into "
                    "the folder",
                    own, student));
  }
  return std::min(student, own);
}

void mark_unused(DeckLoader& deck) {
  for (const char* key : {"max_new_tokens", "temperature", "top_k", "top_p", "cache", "h2o_heavy", "h2o_recent",
                          "window", "sinks", "stop"}) {
    deck.unused(std::string("rollout.") + key, "distill.on_policy is 0: the student writes nothing");
  }
}

class DistillationMethod : public Method {
 public:
  DistillationMethod() : Method(Task::distill) {}

  void check(DeckLoader& deck, Config& config) const override {
    config.distill.resolve(deck);
    const std::string whole_rows = "must be 1 with run.task = distill: a divergence needs all logits of a row";
    deck.check(config.parallel.tensor == 1, {"parallel.tensor"}, whole_rows);
    if (config.distill.on_policy == 0) {
      mark_unused(deck);
    } else {
      config.rollout.resolve(deck, config.batch.sequence_length);
      deck.check(config.data.packing == DataConfig::Packing::none, {"distill.on_policy", "data.packing"},
                 "a sample must be one conversation, for whose prompt the student writes: set data.packing = none");
      deck.check(config.data.max_tokens_per_batch == 0, {"distill.on_policy", "data.max_tokens_per_batch"},
                 "the length of what the student writes is not known in advance: use batch.micro");
    }
    deck.check(config.parallel.tensor != 1 || config.parallel.matrix_blocks() == 1, {"parallel.tensor_blocks"},
               whole_rows);
  }

  std::vector<RoleFolderKey> role_folders(const Config& config) const override {
    if (config.distill.teacher.empty()) return {};
    return {{.key = "distill.teacher",
             .path = config.distill.teacher,
             .head = ModelConfig::Head::language,
             .into = &ModelSource::teacher,
             .content = "distill.teacher",
             .same_vocabulary = false}};
  }

  bool generates(const Config& config) const override { return config.distill.on_policy > 0; }

  std::unique_ptr<BatchSource> batches(const Config& config, const Dataset& data,
                                       const DataStream& samples) const override {
    if (config.distill.on_policy == 0) return nullptr;
    StudentParts parts{.shape = {.sequences = config.batch.global,
                                 .micro = config.batch.micro,
                                 .max_length = config.batch.sequence_length,
                                 .max_new_tokens = config.rollout.max_new_tokens,
                                 .seed = static_cast<uint64_t>(config.run.seed),
                                 .graphs = config.parallel.cuda_graphs},
                       .sampling = config.rollout,
                       .tokenizer = data.tokenizer,
                       .fraction = config.distill.on_policy};
    return std::make_unique<StudentBatches>(std::move(parts), samples);
  }

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_distillation(config.distill);
  }
  /// Evaluations measure the cross-entropy, as those of a student that learns from data alone.
  std::unique_ptr<Objective> evaluator(const Config& /*config*/) const override { return make_cross_entropy(); }

  std::optional<TeacherOptions> teacher(const Config& config, const Dataset& data) const override {
    TeacherOptions options;
    options.terms = config.distill.terms();
    options.vocabulary = common_tokens(config, data);
    options.top_k = std::min(config.distill.top_k, options.vocabulary);
    options.cached = config.distill.cache;
    return options;
  }

  std::vector<RoleSpec> roles(const RoleRequest& request, RoleSpec policy) const override {
    std::vector<RoleSpec> roles = Method::roles(request, std::move(policy));
    if (request.config.distill.runs_teacher()) roles.push_back(teacher_role(request));
    return roles;
  }
};

}  // namespace

const TaskRules& distill_task() {
  static const DistillationMethod method;
  return method;
}

}  // namespace llmtrain
