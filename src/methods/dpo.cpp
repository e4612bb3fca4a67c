// Direct preference optimization and its relatives: losses over pairs, and KTO over documents with a label.

#include <fmt/format.h>

#include "methods/method.hpp"
#include "methods/roles.hpp"

namespace llmtrain {

namespace {

class PreferenceOptimization : public Method {
 public:
  PreferenceOptimization() : Method(Task::dpo) {}

  bool has_dropout() const override { return false; }

  void check(DeckLoader& deck, Config& config) const override {
    config.dpo.resolve(deck);
    deck.check(config.dpo.sync_every == 0 || config.run.finetuning != RunConfig::Finetuning::lora,
               {"dpo.sync_every", "run.finetuning"},
               "the reference of a policy with adapters is its base model, which does not change: use full or freeze");
  }

  std::vector<RoleFolderKey> role_folders(const Config& config) const override {
    const std::string& path = config.dpo.reference;
    if (path == "auto" || path == "none") return {};
    return {{"dpo.reference", path, ModelConfig::Head::language, &ModelSource::reference}};
  }

  SampleRules sample_rules(const Config& config) const override {
    SampleRules rules = Method::sample_rules(config);
    rules.max_prompt_length = config.dpo.max_prompt_length;
    return rules;
  }

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& data) const override {
    const bool kto = config.dpo.is_kto(), labels = data.train->info().column == "label";
    if (kto == labels) return kto ? make_kto(config.dpo) : make_dpo(config.dpo);
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: the rows of {} are {}", config.provenance.where("dpo.loss"), config.data.train.front(),
                    labels ? "documents with a label (data.format = unpaired), which kto alone learns from"
                           : "pairs (data.format = preference); kto learns from rows with a label"));
  }

  std::vector<RoleSpec> roles(const RoleRequest& request, RoleSpec policy) const override {
    std::vector<RoleSpec> roles = Method::roles(request, std::move(policy));
    const Config& config = request.config;
    const bool runs = config.dpo.uses_reference() && !caches_reference(config);
    if (runs && !is_own_reference(config)) roles.push_back(reference_role(request, config.dpo.sync_every > 0));
    return roles;
  }

  bool caches_reference(const Config& config) const override {
    return config.dpo.uses_reference() && config.dpo.cache_reference;
  }

  ReferenceSyncOptions reference_sync(const Config& config) const override {
    if (config.dpo.sync_every == 0) return {};
    return {config.dpo.sync_every, static_cast<float>(config.dpo.sync_alpha)};
  }
};

}  // namespace

const TaskRules& dpo_task() {
  static const PreferenceOptimization method;
  return method;
}

}  // namespace llmtrain
