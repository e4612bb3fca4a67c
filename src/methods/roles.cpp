#include "methods/roles.hpp"

#include <numeric>
#include <utility>

#include "models/freeze.hpp"
#include "models/lora.hpp"
#include "models/models.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain {

int64_t softmax_rows(const ModelConfig& model, const Dataset& data) {
  return model.path.empty() ? data.vocabulary_size : model.vocab_size;
}

DecoderShape trained_shape(const Config& config, const ModelConfig& model, int64_t tokens) {
  using Finetuning = RunConfig::Finetuning;
  DecoderShape shape = decoder_shape(model, tokens);
  shape.stored_rows = config.source.rows;
  shape.new_head = config.source.new_head;
  if (config.run.finetuning == Finetuning::freeze) shape.trained = freeze_rule(config.freeze, model);
  if (config.run.finetuning == Finetuning::lora) {
    adapt(shape, config.lora);
    quantize(shape, config.storage(config.source.quantization));
  }
  return shape;
}

RankPosition rank_position(const Communicator& job, const ParallelConfig& parallel) {
  const auto blocks = static_cast<int>(parallel.ranks_of_blocks());
  return {job.rank() / blocks, job.size() / blocks, 1, 0, job.rank() % blocks};
}

ParamStoreOptions store_options(const Config& config, const RankPosition& position, int64_t experts) {
  const ParallelConfig& parallel = config.parallel;
  ParamStoreOptions options;
  options.compute = compute_dtype(config.precision.compute);
  options.zero_stage = static_cast<int>(parallel.zero);
  options.rank = position.rank;
  options.size = position.size;
  options.tensor_rank = static_cast<int>(position.block_rank % parallel.tensor);
  options.tensor_size = static_cast<int>(parallel.tensor);
  options.tensor_blocks = parallel.matrix_blocks();
  options.expert_rank = static_cast<int>(position.block_rank / parallel.tensor);
  options.expert_size = static_cast<int>(parallel.expert);
  if (experts > 0) options.expert_blocks = parallel.expert_blocks(experts);
  options.groups_at_once = parallel.expert;
  options.node_size = position.node_size;
  options.ranks_per_node = position.ranks_per_node;
  return options;
}

ParamStoreOptions trained_store_options(const Config& config, const RankPosition& position) {
  // A critic lies in the same store.
  const int64_t of_critic = config.source.critic ? config.source.critic->model.experts.count : 0;
  ParamStoreOptions options = store_options(config, position, std::gcd(config.model.experts.count, of_critic));
  options.offload_optimizer = config.parallel.offload_optimizer;
  options.offload_parameters = config.parallel.offload_parameters;
  options.offload_path = config.parallel.offload_path;
  options.states = make_optimizer(config.optimizer)->states();
  return options;
}

RoleSpec frozen_role(Role role, const RoleRequest& request, DecoderShape shape, const std::string& folder) {
  // Members are assigned one by one: GCC 12 destroys parts of an aggregate twice if a later initialiser throws.
  RoleSpec spec;
  spec.role = role;
  spec.shape = std::move(shape);
  spec.store = store_options(request.config, request.position, spec.shape.config.experts.count);
  spec.passes = PassPlan{spec.store.compute, request.shares.max_rows(request.rows), false};
  spec.passes->context = request.shares.ranks;
  spec.passes->context_blocks = request.shares.blocks;
  spec.weights.folder = folder;
  spec.weights.seed = static_cast<uint64_t>(request.config.run.seed);
  return spec;
}

bool is_own_reference(const Config& config) {
  return config.run.finetuning == RunConfig::Finetuning::lora && config.lora.bias == LoraConfig::Bias::none &&
         config.lora.modules_to_save.empty() && !config.lora.moves_base() && config.dpo.reference == "auto";
}

RoleSpec reference_role(const RoleRequest& request, bool follows) {
  const Config& config = request.config;
  const bool adapts = config.run.finetuning == RunConfig::Finetuning::lora;
  const std::optional<RoleFolder>& other = config.source.reference;
  DecoderShape shape = other ? decoder_shape(other->model, other->model.vocab_size)
                             : decoder_shape(config.model, softmax_rows(config.model, request.data));
  if (!other) shape.stored_rows = config.source.rows;
  if (!other && adapts) use_saved_tables(shape, config.lora);
  // A reference that follows the policy is divided into units as the policy is.
  if (follows && config.run.finetuning == RunConfig::Finetuning::freeze) {
    shape.trained = freeze_rule(config.freeze, config.model);
  }
  if (other || adapts) quantize(shape, config.storage(other ? other->quantization : config.source.quantization));
  return frozen_role(Role::reference, request, std::move(shape), other ? other->model.path : config.model.path);
}

RoleSpec teacher_role(const RoleRequest& request) {
  const RoleFolder& teacher = request.config.source.teacher.value();
  DecoderShape shape = decoder_shape(teacher.model, teacher.model.vocab_size);
  quantize(shape, request.config.storage(teacher.quantization));
  return frozen_role(Role::teacher, request, std::move(shape), teacher.model.path);
}

RoleSpec starting_role(const RoleRequest& request) {
  const Config& config = request.config;
  RoleSpec spec =
      frozen_role(Role::reference, request,
                  trained_shape(config, config.model, softmax_rows(config.model, request.data)), config.model.path);
  if (config.run.finetuning == RunConfig::Finetuning::lora) spec.lora = config.lora;
  return spec;
}

}  // namespace llmtrain
