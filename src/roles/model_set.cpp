#include "roles/model_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <tuple>
#include <utility>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/state.hpp"
#include "core/critic_names.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/adapters/adapter_files.hpp"
#include "hf/adapters/adapter_start.hpp"
#include "models/lora.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

namespace {

constexpr size_t read_elements = size_t{1} << 18;  ///< elements of a checkpoint that are read at once

NameSet trained_names(const ParamStore& params) {
  NameSet names;
  for_each_slice(params.units(), [&](const SlicePlace& place, const ParamSpec&, const ParamSlice& slice) {
    if (params.units()[place.unit].trained() && !slice.fixed) names.insert(slice.name);
  });
  return names;
}

std::optional<Decoder> make_critic(const std::optional<CriticSpec>& spec, const Decoder& policy) {
  if (!spec || !spec->shape) return std::nullopt;
  return std::optional<Decoder>(std::in_place, *spec->shape, policy.units(), std::string(critic_prefix));
}

std::unique_ptr<ActorCritic> join(const std::optional<CriticSpec>& spec, Decoder& policy,
                                  std::optional<Decoder>& critic) {
  if (!spec) return nullptr;
  if (!critic) return std::make_unique<SharedActorCritic>(policy);
  return std::make_unique<SeparateActorCritic>(policy, *critic);
}

/// Gives a decoder these blocks of matrices, and of experts, if it has any.
DecoderShape with_blocks(DecoderShape shape, const TensorShare& matrices, const TensorShare& experts) {
  shape.tensor = matrices;
  shape.experts = shape.config.experts.exist() ? experts : TensorShare();
  return shape;
}

/// Gives the models of a role the blocks of its store's rank.
RoleSpec with_share(RoleSpec spec) {
  const auto give = [&](DecoderShape& shape) {
    shape = with_blocks(std::move(shape), spec.store.tensor_share(), spec.store.expert_share());
  };
  give(spec.shape);
  if (spec.critic && spec.critic->shape) give(*spec.critic->shape);
  return spec;
}

std::vector<UnitSpec> units_of_role(const RoleSpec& spec, const Model& model) {
  return spec.trains ? model.units() : frozen(model.units());
}

/// Throws UserError(deck) unless the ranks that share experts train the same matrices of theirs: a pass has the same
/// exchanges on all of them.
void require_alike(const ParamStoreOptions& options) {
  if (!options.shares_experts()) return;
  using Trained = std::vector<std::tuple<std::string, int64_t, int64_t>>;  // layers, or their blocks, and shapes
  std::vector<Trained> of_rank(static_cast<size_t>(options.expert_size));
  for (const UnitSpec& unit : options.model_units) {
    if (!unit.trained || unit.expert_block < 0) continue;
    const int64_t rank = rank_of_block(unit.expert_block, options.expert_blocks, options.expert_size);
    Trained& own = of_rank[static_cast<size_t>(rank)];
    const std::string layer = unit.name.substr(0, unit.name.find(".experts."));
    for (const ParamSpec& param : unit.params) own.emplace_back(layer, param.rows, param.columns);
  }
  if (std::ranges::adjacent_find(of_rank, std::ranges::not_equal_to()) == of_rank.end()) return;
  throw UserError(ExitCode::deck,
                  "parallel.expert: the ranks would train different matrices of their experts: train all experts "
                  "alike, or set 1");
}

/// The store's options with the units of all ranks, where its own are those of some.
ParamStoreOptions with_model_units(const RoleSpec& spec) {
  ParamStoreOptions options = spec.store;
  if (options.ranks_of_blocks() == 1) return options;
  const TensorShare matrices{options.tensor_blocks, 0, options.tensor_blocks};
  const TensorShare experts{options.expert_blocks, 0, options.expert_blocks};
  Decoder policy(with_blocks(spec.shape, matrices, experts));
  std::optional<CriticSpec> critic_spec = spec.critic;
  if (critic_spec && critic_spec->shape) {
    critic_spec->shape = with_blocks(*critic_spec->shape, matrices, experts);
  }
  std::optional<Decoder> critic = make_critic(critic_spec, policy);
  const std::unique_ptr<ActorCritic> both = join(critic_spec, policy, critic);
  options.model_units = units_of_role(spec, both ? static_cast<const Model&>(*both) : policy);
  require_alike(options);
  return options;
}

}  // namespace

RoleModel::RoleModel(RoleSpec spec)
    : spec_(with_share(std::move(spec))),
      model_(spec_.shape),
      critic_(make_critic(spec_.critic, model_)),
      both_(join(spec_.critic, model_, critic_)),
      params_(units_of_role(spec_, model()), with_model_units(spec_)),
      whole_units_(
          units_of_role(spec_, Decoder(spec_.shape.whole())), blocks_of_units(params_.units().model_units()),
          [this](int unit, int64_t begin, int64_t end, float* out) { params_.gather_range(unit, begin, end, out); }) {}

void RoleModel::plan(Arena& arena) {
  params_.plan(arena);
  if (spec_.passes) model().plan(arena, *spec_.passes);
}

void RoleModel::start(const Mesh& mesh, Stream& stream, Transfer::Meanwhile meanwhile) {
  if (!meanwhile) meanwhile = [this] { params_.reducer().add_arrived(); };
  params_.start(mesh.parameters(), stream, &mesh.job(), meanwhile, mesh.experts());
  if (Communicator* ranks = mesh.experts()) {
    model_.share_experts(*ranks, meanwhile);
    if (critic_) critic_->share_experts(*ranks, meanwhile);
  }
  if (Communicator* ranks = mesh.tensor()) {
    model_.share_blocks(*ranks, meanwhile);
    if (critic_) critic_->share_blocks(*ranks, meanwhile);
  }
  model().start(stream);
}

LoadedWeights RoleModel::load(Communicator& communicator, Stream& stream, bool adapters) {
  const WeightSource& from = spec_.weights;
  if (!from.checkpoint.empty()) return load_checkpoint_of(communicator, stream);
  const bool part = spec_.trains && params_.units().trained_parameters() < params_.units().parameters();
  const bool adapts = spec_.lora && adapters, loads_critic = spec_.critic && adapters;
  LoadedWeights loaded;
  std::optional<AdapterStart> start;
  std::string hash;
  if (from.folder.empty()) {
    params_.initialize(from.seed);
    if (part) frozen_ = FrozenWeights{.seed = static_cast<int64_t>(from.seed)};
  } else {
    const bool new_adapters = adapts && spec_.lora->path.empty();
    const bool new_critic = spec_.critic && (spec_.critic->folder.empty() || spec_.critic->shape->new_head);
    const bool new_head = spec_.shape.new_head && !spec_.lora;
    if (new_adapters || new_head || new_critic) params_.initialize(from.seed, /*frozen=*/false);
    const NameSet trained =
        spec_.lora ? choose_adapters(*spec_.lora, spec_.shape.config).trained : trained_names(params_);
    const bool hashed = part || spec_.lora;
    if (new_adapters && spec_.lora->starts_from_weights()) {
      write_adapter_start(adapter_start(), from.folder, spec_.shape, communicator);
    }
    if (adapts || (spec_.lora && spec_.lora->moves_base())) start = open_start(communicator);
    LoadReport report = load_weights(from.folder, spec_.shape, params_, communicator, stream,
                                     {.trained = hashed ? &trained : nullptr,
                                      .publish = !adapts && !loads_critic,
                                      .minus = start ? &start->minus : nullptr});
    if (part)
      frozen_ = {std::filesystem::absolute(from.folder).string(), report.file_bytes, report.hash, 0,
                 spec_.shape.stored_rows};
    loaded = {fmt::format("{}: {}", from.folder, load_text(report)), std::move(report.warnings)};
    hash = report.hash;
  }
  if (loads_critic) load_critic(loaded, !adapts, communicator, stream);
  if (adapts) load_adapters(loaded, hash, start ? &*start : nullptr, communicator, stream);
  return loaded;
}

void RoleModel::load_critic(LoadedWeights& loaded, bool publish, Communicator& communicator, Stream& stream) {
  const std::string& folder = spec_.critic->folder;
  if (folder.empty()) {
    if (publish) params_.publish_masters();
    return;
  }
  const LoadReport report = load_weights(folder, spec_.critic->shape.value(), params_, communicator, stream,
                                         {.publish = publish, .critic = true});
  loaded.text += fmt::format("{}critic from {}: {}", loaded.text.empty() ? "" : "; ", folder, load_text(report));
  loaded.warnings.insert(loaded.warnings.end(), report.warnings.begin(), report.warnings.end());
}

std::string RoleModel::adapter_start() const {
  if (!spec_.lora || !spec_.lora->starts_from_weights()) return {};
  const std::filesystem::path checkpoint = spec_.weights.checkpoint;  // <run>/checkpoints/step-00000001
  const std::filesystem::path run = checkpoint.empty()
                                        ? std::filesystem::path(spec_.weights.run)
                                        : std::filesystem::weakly_canonical(checkpoint).parent_path().parent_path();
  return (run / adapter_start_name).string();
}

std::optional<AdapterStart> RoleModel::open_start(Communicator& communicator) const {
  const std::string file = adapter_start();
  return file.empty() ? std::nullopt : std::optional(AdapterStart::open(file, spec_.shape, communicator));
}

void RoleModel::load_adapters(LoadedWeights& loaded, const std::string& base_hash, const AdapterStart* start,
                              Communicator& communicator, Stream& stream) {
  const std::string& path = spec_.lora->path;
  if (path.empty()) {
    if (start != nullptr) {
      WeightMatch match;
      throw_on_all_ranks(communicator, [&] { match = start->match(units_of(params_)); });
      load_match(start->index, match, params_, communicator, stream, {.publish = false});
      loaded.text += fmt::format("; adapters start as {} says", adapter_start_name);
    }
    params_.publish_masters();
    if (spec_.lora->dora) model_.set_magnitudes(params_, stream);
    return;
  }
  LoadedAdapter adapter = load_adapter(path, spec_.shape, params_, communicator, stream);
  params_.publish_masters();
  loaded.text += fmt::format("{}adapters from {}", loaded.text.empty() ? "" : "; ", path);
  if (!base_hash.empty() && !adapter.base_hash.empty() && base_hash != adapter.base_hash) {
    loaded.warnings.push_back(fmt::format(
        "{}: the adapter was trained with other frozen weights than {} has here (their hashes are {} and {}): "
        "another model, or this one stored in other bits",
        path, spec_.weights.folder, printable(adapter.base_hash), base_hash));
  }
}

void RoleModel::write_adapters(const std::string& folder, Communicator& communicator, bool overwrite) {
  const FrozenWeights base = frozen_.value_or(FrozenWeights{.path = spec_.weights.folder});
  const bool moved = spec_.lora.value().moves_base();
  const AdapterOutput output{
      folder, *spec_.lora, base.path, moved ? "" : base.hash, overwrite, moved ? adapter_start() : ""};
  const auto values = [this](int unit, int64_t begin, int64_t end, float* out) { gather(unit, begin, end, out); };
  write_adapter(output, spec_.shape, whole_units(), values, communicator);
}

/// Frozen weights of the run are not in its checkpoints: they are read from where the run had them.
LoadedWeights RoleModel::load_checkpoint_of(Communicator& communicator, Stream& stream) {
  const WeightSource& from = spec_.weights;
  const Manifest manifest = from.manifest ? *from.manifest : verify_checkpoint(from.checkpoint, communicator);
  LoadedWeights loaded{fmt::format("{}, step {}", from.checkpoint, manifest.step), {}};
  frozen_ = manifest.frozen;
  if (manifest.frozen && manifest.frozen->path.empty()) {
    params_.initialize(static_cast<uint64_t>(manifest.frozen->seed));
  } else if (manifest.frozen) {
    NameSet trained;
    DecoderShape shape = spec_.shape;
    for (const TensorSchema& tensor : manifest.schema.tensors) {
      if (is_adapter_name(tensor.name) || !shape.trained || shape.trained(tensor.name)) trained.insert(tensor.name);
    }
    shape.stored_rows = manifest.frozen->rows;
    shape.new_head = shape.config.scores();  // it is in the checkpoint
    LoadReport report;
    try {
      std::optional<AdapterStart> start;
      if (spec_.lora && spec_.lora->moves_base()) start = open_start(communicator);
      report = load_weights(manifest.frozen->path, shape, params_, communicator, stream,
                            {.trained = &trained, .minus = start ? &start->minus : nullptr});
    } catch (const UserError& error) {  // the same on all ranks
      if (error.code() == ExitCode::stopped) throw;
      throw UserError(error.code(), fmt::format("{}: its frozen weights, which it does not contain, cannot be read. {}",
                                                from.checkpoint, error.what()));
    }
    require_same(*manifest.frozen, {manifest.frozen->path, report.file_bytes, report.hash}, from.checkpoint);
    loaded.text += "; frozen weights from " + manifest.frozen->path;
    loaded.warnings = std::move(report.warnings);
  }
  std::vector<float> buffer(read_elements);
  StoreParameters target(params_, stream);
  load_checkpoint(from.checkpoint, manifest, target, buffer, communicator);
  return loaded;
}

bool ModelSet::has(Role role) const { return std::ranges::find(models_, role, &RoleModel::role) != models_.end(); }

RoleModel& ModelSet::at(Role role) {
  const auto found = std::ranges::find(models_, role, &RoleModel::role);
  LLMTRAIN_CHECK(found != models_.end(), "the job has no model in this role");
  return *found;
}

void ModelSet::plan(Arena& arena) {
  for (RoleModel& model : models_) model.plan(arena);
}

void ModelSet::initialize(uint64_t seed) {
  for (RoleModel& model : models_) model.params().initialize(seed);
}

void ModelSet::start(const Mesh& mesh, Stream& stream) {
  // While a rank gathers the reference's weights, others may wait for its share of the policy's gradients.
  const auto trained = std::ranges::find_if(models_, &RoleModel::trains);
  Transfer::Meanwhile meanwhile;
  if (trained != models_.end()) meanwhile = [&params = trained->params()] { params.reducer().add_arrived(); };
  for (RoleModel& model : models_) model.start(mesh, stream, meanwhile);
}

}  // namespace llmtrain
