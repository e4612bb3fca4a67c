// The Training System's config.yaml and its config.training.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_training_type(Draft& draft, const SettingValue& value) {
  if (value.text == "from_scratch") draft.set_fact("new_weights", "true");
  if (value.text == "lora") draft.set_fact("finetuning", "lora");
  if (value.text != "from_scratch" && value.text != "lora") draft.set_fact("finetuning", "full");
  return "";
}

constexpr Entry with_rule(Entry entry, Rule rule) {
  entry.rule = rule;
  return entry;
}

constexpr Entry entries[] = {
    with_rule(derived("training_type prepare_training.training_type", "task", "run.task, run.finetuning",
                      "from_scratch=pretrain sft lora=sft dpo kto orpo reward ppo grpo"),
              set_training_type),
    derived("prepare_training.model_name model_name", "model", "model.path"),
    no_effect("lora.enabled", "training_type = lora"),
    mapped("beta", "dpo.beta"),
    mapped("max_length max_seq_length", "batch.sequence_length"),
    mapped("max_prompt_length", "dpo.max_prompt_length"),
    mapped("reference_free", "dpo.reference", "true=none false="),
    no_effect("distributed", "mpirun or srun starts the ranks"),
    derived("num_gpus", "world", "batch.global"),
    derived("deepspeed.zero_stage", "zero", "parallel.zero", "0 1 2 3"),
    mapped("deepspeed.offload_optimizer", "parallel.offload_optimizer", "true=cpu false=none cpu nvme"),
    derived("deepspeed.offload_param", "offload_parameters", "parallel.offload_parameters",
            "true=cpu false=none cpu nvme"),
    mapped("cpu_offload", "parallel.offload_optimizer", "true=cpu false=none"),
    no_effect("pin_memory", "buffers are planned before the first step"),
    derived("curriculum.enabled", "curriculum", "curriculum.strategy", yes_no),
    mapped("curriculum.strategy", "curriculum.strategy", "length_based=length difficulty_based=difficulty"),
    mapped("curriculum.start_length", "curriculum.start"),
    mapped("curriculum.end_length", "curriculum.end"),
    mapped("curriculum.steps", "curriculum.steps"),
    derived("Accelerator.mixed_precision", "dtype", "precision.compute", dtypes),
    derived("Accelerator.log_with", "sinks", "log.sinks", sinks),
    derived("Accelerator.gradient_accumulation_steps", "accumulation", "batch.global"),
    no_effect("TrainingOrchestrator.accelerator", "MPI takes its place"),
    mapped("use_auxiliary_loss", "objective.z_loss",
           "true=1e-4 false=", "auxiliary terms of dense models: [objective]"),
};

constexpr Include includes[] = {{"lora.", &peft}, {"", &transformers}};
constexpr std::string_view prefixes[] = {"config.", "training.", "from_scratch.", "sft.", "dpo."};

}  // namespace

const System training_system{"training-system", "Training System", entries, {}, {}, includes, prefixes};

}  // namespace llmtrain::convert
