#pragma once
// A task has rules for a deck, rows of data and models. A task that trains is a method: a file here, and a line in
// the list of core/deck/task.hpp. docs/design/adding.md shows how one is added.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.hpp"
#include "core/deck/deck.hpp"
#include "data/dataset.hpp"
#include "data/sample_rules.hpp"
#include "data/stream/data_stream.hpp"
#include "objectives/objective.hpp"
#include "roles/model_set.hpp"
#include "roles/reference.hpp"
#include "roles/teacher.hpp"

namespace llmtrain {

/// Rank for which memory is planned.
struct RankPosition {
  int rank;  ///< among the ranks that have the same blocks of matrices and experts
  int size;
  int node_size;           ///< ranks of a node that share memory, see ParamStoreOptions
  int ranks_per_node = 0;  ///< the same for all nodes
  int64_t block_rank = 0;  ///< among the ranks that share its matrices and its experts
};

/// Folder of a model beside the policy, which the deck names.
struct RoleFolderKey {
  const char* key;  ///< that names it, for errors
  std::string path;
  ModelConfig::Head head;                        ///< that the model must have
  std::optional<RoleFolder> ModelSource::*into;  ///< where load_config() keeps the properties
  bool reads_tokens = true;                      ///< false: it gets the same text in tokens of its own
  const char* content = nullptr;                 ///< key of its contents in checkpoints; null: they have none
  bool same_vocabulary = true;                   ///< a language model must have as many tokens as the policy
};

class TaskRules {
 public:
  explicit TaskRules(Task task) : data_(task) {}
  virtual ~TaskRules() = default;

  Task task() const { return data_.task; }
  const TaskData& data() const { return data_; }
  bool trains() const { return data_.trains(); }

  /// Head that the model must have; none: any.
  virtual std::optional<ModelConfig::Head> head(const Config& /*config*/) const { return ModelConfig::Head::language; }
  /// False if passes whose log-probabilities are compared have no dropout.
  virtual bool has_dropout() const { return true; }
  /// True if a required key of its tasks must be given.
  virtual bool needs(std::string_view /*key*/) const { return true; }
  /// Greatest batch.sequence_length that the program takes from the model's folder if the deck gives none; 0: the deck
  /// gives it. With length_of_prompts it is shortened to what the prompts need.
  static constexpr int64_t length_of_prompts = std::numeric_limits<int64_t>::max();
  virtual int64_t max_default_length() const { return 0; }
  /// True if another value of a key changes the results.
  virtual bool compares(const DeckKeys::Key& key) const { return key.change != Change::nothing; }

  /// Resolves the task's own section, and reports what sections ask of each other.
  virtual void check(DeckLoader& /*deck*/, Config& /*config*/) const {}
  /// Models beside the policy; their properties are read after check().
  virtual std::vector<RoleFolderKey> role_folders(const Config& /*config*/) const { return {}; }
  /// Reports errors of files that no section owns.
  virtual void examine(DeckLoader& /*deck*/, const Config& /*config*/) const {}
  /// How rows become samples, beside the keys of [data].
  virtual SampleRules sample_rules(const Config& config) const;

 private:
  TaskData data_;
};

/// Reports that a task without training needs a model.
void require_model_path(DeckLoader& deck, const Config& config);

/// A rank's models and the data that they read.
struct RoleRequest {
  const Config& config;
  const Dataset& data;
  RankPosition position;
  int64_t rows;           ///< of the largest pass
  RowShares shares = {};  ///< of the rows of a pass
};

class Method : public TaskRules {
 public:
  using TaskRules::TaskRules;

  /// The loss, the cross-entropy unless a method has another one. Throws UserError for rows that are not those it
  /// needs.
  virtual std::unique_ptr<Objective> objective(const Config& config, const Dataset& data) const;
  /// Returns the objective of evaluations, if it is another one, such as the cross-entropy without further terms; else
  /// null.
  /// It needs no statistics but log-probabilities.
  virtual std::unique_ptr<Objective> evaluator(const Config& config) const;
  /// The models: `policy`, with a critic if there is one, and those beside it.
  virtual std::vector<RoleSpec> roles(const RoleRequest& request, RoleSpec policy) const;
  /// Number of samples of a step, and how they are divided.
  virtual BatchConfig sample_batch(const Config& config) const { return config.batch; }
  /// Batches that steps learn from, if those are not the samples themselves; else null.
  virtual std::unique_ptr<BatchSource> batches(const Config& /*config*/, const Dataset& /*data*/,
                                               const DataStream& /*samples*/) const {
    return nullptr;
  }
  /// True if the reference's values are computed before training, which then runs without the model.
  virtual bool caches_reference(const Config& /*config*/) const { return false; }
  /// How the reference follows the policy during training.
  virtual ReferenceSyncOptions reference_sync(const Config& /*config*/) const { return {}; }
  /// Returns the options of learning from a teacher, or none without a teacher. Throws UserError.
  virtual std::optional<TeacherOptions> teacher(const Config& /*config*/, const Dataset& /*data*/) const {
    return std::nullopt;
  }
  /// True if the policy writes texts between steps, for which gathered weights are worth their memory.
  virtual bool generates(const Config& /*config*/) const { return false; }
  /// Reads all rows for errors that are not in their format. Throws UserError.
  virtual void check_rows(const Config& /*config*/) const {}
  /// Starts the programs that the deck names, once. Throws UserError.
  virtual void try_programs(const Config& /*config*/) const {}
};

/// Every task has rules.
const TaskRules& task_rules(Task task);
/// The task of the deck as a method; it trains.
const Method& method_of(const Config& config);
/// How the task of a resolved deck reads its data.
SampleRules sample_rules(const Config& config);

}  // namespace llmtrain
