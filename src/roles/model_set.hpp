#pragma once
// Every model of a job, by role: the one place that makes, plans, loads and holds a model with its parameters.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/arena.hpp"
#include "models/decoder.hpp"
#include "models/lora_config.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// Purpose of a model in a job.
enum class Role : uint8_t {
  policy,     ///< the model that is trained, evaluated or sampled
  reference,  ///< the frozen model that a policy is compared with
  reward,     ///< the frozen model that scores completions
};

/// Origin of a model's weights: a checkpoint, else a Hugging Face folder, else random numbers.
struct WeightSource {
  std::string folder = {};
  std::string checkpoint = {};
  std::optional<Manifest> manifest = {};  ///< of the checkpoint if it is verified already
  uint64_t seed = 0;
};

struct RoleSpec {
  Role role = Role::policy;
  DecoderShape shape;
  bool trains = false;  ///< false: all of it is frozen; true: shape.trained says what is trained
  ParamStoreOptions store;
  std::optional<PassPlan> passes = {};  ///< not set: the caller plans the activations
  WeightSource weights = {};
  /// Adapters of the shape, which are read from lora->path, or new without it. They are not in weights.folder.
  std::optional<LoraConfig> lora = {};
};

/// Report of a load, for the log.
struct LoadedWeights {
  std::string text;  ///< empty for random numbers
  std::vector<std::string> warnings;
};

class RoleModel {
 public:
  explicit RoleModel(RoleSpec spec);

  Role role() const { return spec_.role; }
  const DecoderShape& shape() const { return spec_.shape; }
  Model& model() { return model_; }
  const Model& model() const { return model_; }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }

  void plan(Arena& arena);
  /// Starts communication and fills constant tables; the arena is committed.
  void start(Communicator& communicator, Stream& stream);
  /// Reads or initialises the weights; `adapters` = false leaves out adapters that the caller restores. Collective.
  LoadedWeights load(Communicator& communicator, Stream& stream, bool adapters = true);
  /// Description of the frozen weights for checkpoints, which do not contain them, once load() has read them; none if
  /// everything is trained.
  const std::optional<FrozenWeights>& frozen_weights() const { return frozen_; }
  /// Writes the adapters as PEFT's files into a folder, where `overwrite` replaces files. Collective.
  void write_adapters(const std::string& folder, Communicator& communicator, bool overwrite = true);
  const WeightSource& weights() const { return spec_.weights; }
  bool has_adapters() const { return spec_.lora.has_value(); }

 private:
  LoadedWeights load_checkpoint_of(Communicator& communicator, Stream& stream);
  void load_adapters(LoadedWeights& loaded, const std::string& base_hash, Communicator& communicator, Stream& stream);

  RoleSpec spec_;
  Decoder model_;
  ParamStore params_;
  std::optional<FrozenWeights> frozen_;
};

class ModelSet {
 public:
  RoleModel& add(RoleSpec spec) { return models_.emplace_back(std::move(spec)); }
  bool has(Role role) const;
  RoleModel& at(Role role);
  const RoleModel& at(Role role) const { return const_cast<ModelSet*>(this)->at(role); }

  // Each for all models, in the order in which they were added.
  void plan(Arena& arena);
  void start(Communicator& communicator, Stream& stream);

 private:
  std::list<RoleModel> models_;
};

}  // namespace llmtrain
