#pragma once
// PPO and GRPO share prompts, rollouts and rewards.

#include <memory>
#include <string>
#include <vector>

#include "methods/method.hpp"
#include "rollout/rollouts.hpp"

namespace llmtrain {

class ReinforcementMethod : public Method {
 public:
  using Method::Method;

  bool has_dropout() const override { return false; }
  bool generates(const Config& /*config*/) const override { return true; }
  void check(DeckLoader& deck, Config& config) const override;
  std::vector<RoleFolderKey> role_folders(const Config& config) const override;
  SampleRules sample_rules(const Config& config) const override;
  std::vector<RoleSpec> roles(const RoleRequest& request, RoleSpec policy) const override;
  /// The stream of prompts: one a step.
  BatchConfig sample_batch(const Config& config) const override;
  void check_rows(const Config& config) const override;
  void try_programs(const Config& config) const override;

 protected:
  /// Parts of the rollouts but the estimate of advantages. Throws UserError if the reward model reads other tokens.
  RolloutParts parts(const Config& config, const Dataset& data, int64_t epochs, int64_t mini_batches) const;
  /// True if completions are scored by a reference.
  virtual bool has_reference(const Config& config) const = 0;
  /// Folder of a reward model that a key of the method's section names; empty: there is none.
  virtual std::string reward_folder(const Config& /*config*/) const { return {}; }
  /// Key that names the reward model.
  virtual const char* reward_key() const { return "rewards.functions"; }
  /// False if the reward model gets the text in tokens of its own.
  virtual bool reads_tokens(const Config& /*config*/) const { return true; }
  virtual std::string other_tokenizer_advice() const { return "Train a reward model from the policy's folder"; }
};

/// Tokenizer of a folder where it is another one than the policy's; null if both are the same.
std::shared_ptr<const Tokenizer> different_tokenizer(const Tokenizer& own, const RoleFolder& folder);

}  // namespace llmtrain
