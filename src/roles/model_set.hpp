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
#include "models/actor_critic.hpp"
#include "models/lora_config.hpp"
#include "parallel/mesh.hpp"
#include "params/param_store.hpp"
#include "params/whole_units.hpp"

namespace llmtrain {

struct AdapterStart;

/// Purpose of a model in a job.
enum class Role : uint8_t {
  policy,     ///< the model that is trained, evaluated or sampled
  reference,  ///< the frozen model that a policy is compared with
  reward,     ///< the frozen model that scores completions
  teacher,    ///< the frozen model whose distributions a policy learns
};

/// Origin of a model's weights: a checkpoint, else a Hugging Face folder, else random numbers.
struct WeightSource {
  std::string folder = {};
  std::string checkpoint = {};
  std::optional<Manifest> manifest = {};  ///< of the checkpoint if it is verified already
  uint64_t seed = 0;
  std::string run = {};  ///< folder of the run, which has the start of adapters
};

/// A critic beside a policy, all of it trained. Checkpoints hold it with the policy.
struct CriticSpec {
  std::optional<DecoderShape> shape = {};  ///< not set: a second head on the policy's trunk
  std::string folder = {};                 ///< of a model that scores; empty: random numbers
};

struct RoleSpec {
  Role role = Role::policy;
  DecoderShape shape;
  bool trains = false;                  ///< false: all of it is frozen; true: shape.trained says what is trained
  ParamStoreOptions store;              ///< its share of blocks is the shapes'
  std::optional<PassPlan> passes = {};  ///< not set: the caller plans the activations
  WeightSource weights = {};
  /// Adapters of the shape, which are read from lora->path, or new without it. They are not in weights.folder.
  std::optional<LoraConfig> lora = {};
  std::optional<CriticSpec> critic = {};
};

/// Report of a load, for the log.
struct LoadedWeights {
  std::string text;  ///< empty for random numbers
  std::vector<std::string> warnings;
};

class RoleModel {
 public:
  explicit RoleModel(RoleSpec spec);
  RoleModel(const RoleModel&) = delete;
  RoleModel& operator=(const RoleModel&) = delete;

  Role role() const { return spec_.role; }
  bool trains() const { return spec_.trains; }
  const DecoderShape& shape() const { return spec_.shape; }
  /// The trained model, with its critic if it has one.
  Model& model() { return both_ != nullptr ? static_cast<Model&>(*both_) : model_; }
  const Model& model() const { return const_cast<RoleModel*>(this)->model(); }
  /// The model alone, for generation and log-probabilities.
  Decoder& actor() { return model_; }
  const Decoder& actor() const { return model_; }
  /// The model and its critic, which exists.
  ActorCritic& actor_critic() { return *both_; }
  /// Units of the model alone, its matrices not split.
  const std::vector<UnitSpec>& whole_units() const { return whole_units_.units(); }
  /// Copies the tensors among elements [begin, end) of one of whole_units() to rank 0, as fp32 masters in host memory;
  /// on other ranks `out` has the same size. Collective.
  void gather(int unit, int64_t begin, int64_t end, float* out) { whole_units_.read(unit, begin, end, out); }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }

  void plan(Arena& arena);
  /// Starts communication and fills constant tables; the arena is committed. `meanwhile` adds the sums of the model
  /// that trains, while other ranks are awaited; not set: none does but this one.
  void start(const Mesh& mesh, Stream& stream, Transfer::Meanwhile meanwhile = {});
  /// Reads or initialises the weights; `adapters` = false leaves out adapters and a critic, which the caller restores.
  /// Collective.
  LoadedWeights load(Communicator& communicator, Stream& stream, bool adapters = true);
  /// Description of the frozen weights for checkpoints, which do not contain them, once load() has read them; none if
  /// everything is trained.
  const std::optional<FrozenWeights>& frozen_weights() const { return frozen_; }
  /// Writes the adapters as PEFT's files into a folder, where `overwrite` replaces files. Collective.
  void write_adapters(const std::string& folder, Communicator& communicator, bool overwrite = true);
  const WeightSource& weights() const { return spec_.weights; }
  bool has_adapters() const { return spec_.lora.has_value(); }

  /// The file with what new adapters begin with, if the frozen matrices or the adapters need it.
  std::string adapter_start() const;

 private:
  std::optional<AdapterStart> open_start(Communicator& communicator) const;
  LoadedWeights load_checkpoint_of(Communicator& communicator, Stream& stream);
  void load_critic(LoadedWeights& loaded, bool publish, Communicator& communicator, Stream& stream);
  void load_adapters(LoadedWeights& loaded, const std::string& base_hash, const AdapterStart* start,
                     Communicator& communicator, Stream& stream);

  RoleSpec spec_;
  Decoder model_;
  std::optional<Decoder> critic_;  ///< with a trunk of its own
  std::unique_ptr<ActorCritic> both_;
  ParamStore params_;
  WholeUnits whole_units_;
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
  void start(const Mesh& mesh, Stream& stream);
  /// Sets random weights.
  void initialize(uint64_t seed);

 private:
  std::list<RoleModel> models_;
};

}  // namespace llmtrain
