// Proximal policy optimization: a critic, generalised advantage estimation, and rewards for staying near the reference.

#include <fmt/format.h>

#include "methods/reinforcement.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

class ProximalOptimization : public ReinforcementMethod {
 public:
  ProximalOptimization() : ReinforcementMethod(Task::ppo) {}

  void check(DeckLoader& deck, Config& config) const override {
    ReinforcementMethod::check(deck, config);
    const PpoConfig& ppo = config.ppo;
    config.ppo.resolve(deck);
    deck.check(
        !ppo.same_text || !ppo.value_model.empty(), {"ppo.value_model", "ppo.same_text"},
        "is missing: the critic reads the policy's tokens, which with ppo.same_text the reward model need not know");
    deck.check(!ppo.critic().empty(), {"ppo.value_model", "ppo.reward_model"},
               "is missing: give the folder of a model that scores, from which the critic starts, or policy");
    deck.check(!ppo.reward_model.empty() || !config.rewards.functions.empty(),
               {"ppo.reward_model", "rewards.functions"}, "is missing: nothing would give a reward");
  }

  std::vector<RoleFolderKey> role_folders(const Config& config) const override {
    constexpr ModelConfig::Head score = ModelConfig::Head::score;
    const PpoConfig& ppo = config.ppo;
    std::vector<RoleFolderKey> folders = ReinforcementMethod::role_folders(config);
    if (!ppo.reward_model.empty()) {
      folders.push_back(
          {reward_key(), ppo.reward_model, score, &ModelSource::reward, reads_tokens(config), reward_key()});
    }
    if (!ppo.shares_trunk() && !ppo.critic().empty()) {
      const char* key = ppo.value_model.empty() ? "ppo.reward_model" : "ppo.value_model";
      folders.push_back({key, ppo.critic(), score, &ModelSource::critic, true, "ppo.value_model"});
    }
    return folders;
  }

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_ppo(config.ppo);
  }

  std::vector<RoleSpec> roles(const RoleRequest& request, RoleSpec policy) const override {
    policy.critic.emplace();
    if (!request.config.ppo.shares_trunk()) {
      const ModelConfig& model = request.config.source.critic.value().model;
      policy.critic = CriticSpec{decoder_shape(model, model.vocab_size), model.path};
    }
    return ReinforcementMethod::roles(request, std::move(policy));
  }

  std::unique_ptr<BatchSource> batches(const Config& config, const Dataset& data,
                                       const DataStream& samples) const override {
    RolloutParts rollout = parts(config, data, config.ppo.epochs, config.ppo.mini_batches);
    rollout.advantages = make_ppo_estimator(config.ppo);
    rollout.values = true;
    std::vector<WeightedReward>& terms = rollout.rewards.terms;
    if (!config.ppo.reward_model.empty()) terms.insert(terms.begin(), WeightedReward{.name = "reward_model"});
    if (config.source.critic && different_tokenizer(*data.tokenizer, *config.source.critic) != nullptr) {
      throw UserError(ExitCode::deck,
                      fmt::format("{}: {} has a different tokenizer than the policy, but the critic reads "
                                  "the policy's tokens: start it from a reward model with the policy's tokenizer",
                                  config.provenance.where("ppo.value_model"), config.source.critic->model.path));
    }
    return std::make_unique<Rollouts>(std::move(rollout), samples);
  }

 private:
  bool has_reference(const Config& /*config*/) const override { return true; }
  std::string reward_folder(const Config& config) const override { return config.ppo.reward_model; }
  const char* reward_key() const override { return "ppo.reward_model"; }
  bool reads_tokens(const Config& config) const override { return !config.ppo.same_text; }
  std::string other_tokenizer_advice() const override {
    return "With ppo.same_text = true it gets the same text in its own tokens";
  }
};

}  // namespace

const TaskRules& ppo_task() {
  static const ProximalOptimization method;
  return method;
}

}  // namespace llmtrain
