// torchtune's recipes.
#include "convert/dataset_rules.hpp"
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

/// A component such as torchtune.models.llama3.lora_llama3_8b: its name's beginning tells what is trained.
std::string set_model_component(Draft& draft, const SettingValue& value) {
  const std::string name = value.text.substr(value.text.rfind('.') + 1);
  draft.set_fact("finetuning", name.starts_with("qlora_") ? "qlora" : name.starts_with("lora_") ? "lora" : "full");
  if (value.text.find("vision") != std::string::npos) return value.print() + " reads images; models here read text";
  return "";
}

void add_target(Draft& draft, const std::string& names) {
  const Draft::Given* const before = draft.find("lora.target_modules");
  draft.replace("lora.target_modules", before == nullptr ? names : before->text + ", " + names);
}

std::string set_attention_modules(Draft& draft, const SettingValue& value) {
  for (const SettingValue& item : value.items) add_target(draft, item.text == "output_proj" ? "o_proj" : item.text);
  return "";
}

std::string set_mlp_modules(Draft& draft, const SettingValue& value) {
  if (value.boolean().value_or(false)) add_target(draft, "gate_proj, up_proj, down_proj");
  return "";
}

std::string set_output_module(Draft& draft, const SettingValue& value) {
  if (value.boolean().value_or(false)) add_target(draft, "lm_head");
  return "";
}

/// The share of the divergence, beside which the cross-entropy has the rest.
std::string set_kd_ratio(Draft& draft, const SettingValue& value) {
  const std::optional<double> ratio = value.number();
  if (!ratio || *ratio <= 0 || *ratio > 1) return "must be above 0, at most 1";
  return draft.set_text("distill.cross_entropy", print_number((1 - *ratio) / *ratio));
}

constexpr std::string_view kd_losses =
    "torchtune.modules.loss.ForwardKLLoss=forward_kl torchtune.modules.loss.ForwardKLWithChunkedOutputLoss=forward_kl "
    "torchtune.modules.loss.ReverseKLLoss=reverse_kl torchtune.modules.loss.ReverseKLWithChunkedOutputLoss=reverse_kl "
    "torchtune.modules.loss.SymmetricKLLoss=jsd torchtune.modules.loss.SymmetricKLWithChunkedOutputLoss=jsd";

constexpr std::string_view dataset_builders =
    "torchtune.datasets.alpaca_dataset=alpaca torchtune.datasets.alpaca_cleaned_dataset=alpaca "
    "torchtune.datasets.instruct_dataset=alpaca torchtune.datasets.chat_dataset= "
    "torchtune.datasets.text_completion_dataset=text torchtune.datasets.preference_dataset=preference "
    "torchtune.datasets.stack_exchange_paired_dataset=preference "
    "torchtune.datasets.hh_rlhf_helpful_dataset=preference torchtune.datasets.samsum_dataset=auto "
    "torchtune.datasets.grammar_dataset=auto torchtune.datasets.slimorca_dataset=sharegpt "
    "torchtune.datasets.wikitext_dataset=text torchtune.datasets.cnn_dailymail_articles_dataset=text";

std::string set_dataset_builder(Draft& draft, const SettingValue& value) {
  const bool of_alpaca = value.text.ends_with(".alpaca_dataset") || value.text.ends_with(".alpaca_cleaned_dataset");
  draft.set_fact("builder", value.text);
  if (!draft.is_fact("builder", value.text)) {
    draft.replace("data.format", "auto");
    return "another builder than in " + draft.fact("builder")->origin + ": write all rows in one format";
  }
  if (std::string wrong = set_row_format_of(draft, value, dataset_builders); !wrong.empty()) return wrong;
  if (!of_alpaca) return "";
  draft.set_fact("dataset_of_alpaca", "true");
  if (!draft.fact("train_on_input")) draft.set_text("chat.train_on", "all");
  return use_template_of_rows(draft, "alpaca", "alpaca");
}

/// RSO is the hinge loss of DPO.
std::string set_loss(Draft& draft, const SettingValue& value) {
  return value.text.ends_with(".RSOLoss") ? draft.set_text("dpo.loss", "hinge") : "";
}

/// An amount that is added to the reward, such as -3; here it is subtracted.
std::string set_reward_penalty(Draft& draft, const SettingValue& value) {
  const std::optional<double> penalty = value.number();
  if (!penalty) return value.print() + ": must be a number";
  return draft.set_text("ppo.missing_eos_penalty", print_number(-*penalty));
}

std::string set_train_on_input(Draft& draft, const SettingValue& value) {
  const bool all = value.boolean().value_or(false);
  draft.set_fact("train_on_input", all ? "true" : "false");
  draft.erase("chat.train_on");
  return all ? draft.set_text("chat.train_on", "all") : "";
}

/// Columns of a data set by their names in torchtune; the input of instructions is a second text beside them.
std::string set_column_map(Draft& draft, const SettingValue& value) {
  const bool has_instruction = value.find("instruction") != nullptr || draft.is_fact("dataset_of_alpaca", "true");
  for (const auto& [theirs, column] : value.members) {
    std::string role = theirs;
    if (theirs == "instruction") role = "prompt";
    if (theirs == "input") role = has_instruction ? "query" : "prompt";
    if (theirs == "output") role = "response";
    if (theirs == "conversations") role = "messages";
    if (!has_word("prompt query response messages system chosen rejected", role)) {
      return "there is no column for " + theirs;
    }
    if (std::string wrong = set_column(draft, role, column); !wrong.empty()) return wrong;
  }
  return value.is(SettingValue::Kind::map) ? "" : value.print() + ": must be a map of names";
}

constexpr Entry entries[] = {
    derived("output_dir", "output_dir", "run.output, run.name"),
    ruled("model._component_ policy_model._component_", set_model_component, "run.finetuning, quantization.bits",
          "lora_ and qlora_ begin the names of builders; the weights are those of checkpointer.checkpoint_dir"),
    ruled("model.lora_attn_modules", set_attention_modules, "lora.target_modules"),
    ruled("model.apply_lora_to_mlp", set_mlp_modules, "lora.target_modules"),
    ruled("model.apply_lora_to_output", set_output_module, "lora.target_modules"),
    mapped("model.lora_rank", "lora.r"),
    mapped("model.lora_alpha", "lora.alpha"),
    mapped("model.lora_dropout", "lora.dropout"),
    mapped("model.use_dora", "lora.dora"),
    mapped("model.quantize_base", "quantization.bits", "true=4 false="),
    no_effect("tokenizer._component_ tokenizer.path tokenizer.merges_file tokenizer.vocab_path tokenizer.merges_path "
              "tokenizer.special_tokens_path",
              "the tokenizer of model.path"),
    mapped("tokenizer.max_seq_len max_seq_length", "batch.sequence_length"),
    mapped("tokenizer.prompt_template", "chat.template"),
    derived("checkpointer.checkpoint_dir", "model", "model.path"),
    no_effect("checkpointer._component_ checkpointer.checkpoint_files checkpointer.checkpoint_files.filename_format "
              "checkpointer.checkpoint_files.max_filename checkpointer.model_type checkpointer.output_dir "
              "checkpointer.recipe_checkpoint checkpointer.safe_serialization",
              "a Hugging Face folder; its config.json determines the model"),
    mapped("checkpointer.adapter_checkpoint", "lora.path"),
    unsupported("resume_from_checkpoint should_load_recipe_state",
                "submit the same command again: a run resumes by itself"),
    mapped("dataset._component_", "data.format", "torchtune.datasets.text_completion_dataset=prompt",
           "rows with prompts, as JSON lines")
        .for_tasks("ppo grpo"),
    Entry{"dataset._component_",
          Effect::mapped,
          "data.format, chat.train_on",
          dataset_builders,
          "write the rows as JSON lines; the two of alpaca train on the prompt, too, unless train_on_input is false; "
          "Llama 3's tokenizer there puts the headers of turns around the prompt of alpaca, too",
          {},
          set_dataset_builder},
    ruled("dataset.data_files dataset.source", set_datasets, "data.train",
          "files; the rows of the hub's data sets have to be written to files"),
    ruled("dataset_val.data_files dataset_val.source", set_validation_datasets, "data.validation",
          "files; the rows of the hub's data sets have to be written to files"),
    derived("run_val_every_n_steps", "eval_steps", "evaluation.every_steps"),
    no_effect("batch_size_val", "evaluations use batch.micro, and their result does not depend on it"),
    mapped("dataset.packed", "data.packing", "true=greedy false=none"),
    ruled("dataset.train_on_input", set_train_on_input, "chat.train_on"),
    mapped("dataset.masking_strategy", "chat.train_on",
           "train_on_all=all train_on_assistant=assistant train_on_last=last"),
    ruled("dataset.column", set_column_of<"prompt">, "data.columns").for_tasks("ppo grpo"),
    ruled("dataset.column", set_column_of<"text">, "data.columns"),
    ruled("dataset.column_map", set_column_map, "data.columns"),
    ruled("dataset.conversation_column", set_column_of<"messages">, "data.columns"),
    mapped("dataset.conversation_style", "data.format", "openai=messages sharegpt"),
    mapped("dataset.new_system_prompt", "chat.system"),
    unsupported("dataset.split dataset.partition", "the rows of the split in files, as by llmtool split", "train"),
    unsupported("dataset.subset dataset.name", "the rows of this configuration in files"),
    no_effect("dataset.add_eos collate_fn dataloader", "data.train names files; documents end with EOS"),
    unsupported("datasets", "several files with weights: data.train = FILE:WEIGHT, FILE:WEIGHT"),
    mapped("seed", "run.seed"),
    mapped("shuffle", "data.shuffle"),
    derived("batch_size", "global", "batch.global", {}, "completions of a rollout").for_tasks("ppo"),
    no_effect("gradient_accumulation_steps", "batch.micro divides the passes").for_tasks("ppo"),
    derived("batch_size", "prompts", "batch.micro, batch.global", {},
            "prompts there; each has grpo_samples completions")
        .for_tasks("grpo"),
    derived("batch_size", "micro", "batch.micro, batch.global"),
    derived("name", "run_name", "run.name, wandb.name"),
    mapped("grpo_samples", "grpo.group_size"),
    unsupported("reward_functions", "rewards.functions, such as exact:COLUMN or command:PROGRAM"),
    mapped("loss.kl_coeff", "grpo.beta"),
    mapped("save_every_n_epochs", "checkpoint.every_epochs"),
    mapped("save_every_n_steps", "checkpoint.every_steps"),
    mapped("checkpointer.keep_last_n_checkpoints", "checkpoint.keep"),
    no_effect("model.vocab_size model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.max_seq_len "
              "model.intermediate_dim model.attn_dropout model.norm_eps model.rope_base base_model_path "
              "use_distributed_state_dict use_flex tokenizer.max_num_tiles apply_chat_template",
              "config.json in model.path determines the shape"),
    unsupported("layer_dropout early_exit_loss", "all layers are trained on every token: model.dropout"),
    unsupported("inference orchestration postprocessing training",
                "run.task = grpo generates and trains in turn, in one program"),
    derived("gradient_accumulation_steps", "accumulation", "batch.global"),
    mapped("optimizer._component_", "optimizer.name",
           "torch.optim.AdamW=adamw torch.optim.Adam=adamw torch.optim.SGD=sgd bitsandbytes.optim.AdamW8bit=adamw_8bit "
           "bitsandbytes.optim.PagedAdamW=paged_adamw bitsandbytes.optim.PagedAdamW8bit=paged_adamw_8bit "
           "torchao.optim.AdamW8bit=adamw_8bit",
           "adamw or adamw_8bit"),
    mapped("optimizer.lr", "schedule.learning_rate"),
    mapped("optimizer.weight_decay", "optimizer.weight_decay"),
    ruled("optimizer.betas", set_betas, "optimizer.beta1, optimizer.beta2"),
    mapped("optimizer.eps", "optimizer.epsilon"),
    no_effect("optimizer.fused optimizer.foreach optimizer_in_bwd", "updates are fused"),
    mapped("lr_scheduler._component_", "schedule.name",
           "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup=cosine "
           "torchtune.modules.get_cosine_schedule_with_warmup=cosine"),
    derived("lr_scheduler.num_warmup_steps", "warmup_steps", "schedule.warmup_steps"),
    mapped("lr_scheduler.num_cycles", "schedule.num_cycles"),
    Entry{"loss._component_", Effect::mapped, "run.task, dpo.loss",
          "torchtune.modules.loss.CEWithChunkedOutputLoss=sft torchtune.modules.loss.LinearCrossEntropyLoss=sft "
          "torch.nn.CrossEntropyLoss=sft torchtune.rlhf.loss.DPOLoss=dpo torchtune.rlhf.loss.RSOLoss=dpo "
          "torchtune.rlhf.loss.PPOLoss=ppo torchtune.dev.grpo.loss.GRPOLoss=grpo "
          "torchtune.dev.grpo.loss.GRPOSimpleLoss=grpo",
          "other losses are not supported", "task", set_loss},
    mapped("loss.gamma", "dpo.beta"),
    mapped("loss.beta", "dpo.beta"),
    mapped("loss.label_smoothing", "dpo.label_smoothing"),
    mapped("loss.epsilon", "grpo.epsilon").for_tasks("grpo"),
    mapped("loss.epsilon", "ppo.clip"),
    mapped("loss.value_coeff", "ppo.value_coefficient"),
    mapped("loss.value_clip_range", "ppo.value_clip"),
    no_effect("loss.num_output_chunks", "the loss is computed in parts already"),
    derived("epochs", "epochs", "run.epochs"),
    derived("max_steps_per_epoch", "steps_of_epoch", "run.max_steps", {},
            "where epochs is 1; the run there ends with its rows, too"),
    unsupported("num_steps", "run.max_steps: samples there, steps here"),
    mapped("clip_grad_norm", "optimizer.max_grad_norm"),
    no_effect("compile low_cpu_ram memory_efficient_fsdp_wrap custom_sharded_layers",
              "kernels are compiled, and layers are gathered one at a time"),
    derived("metric_logger._component_", "sinks", "log.sinks",
            "torchtune.training.metric_logging.DiskLogger= torchtune.training.metric_logging.StdoutLogger= "
            "torchtune.training.metric_logging.WandBLogger=wandb "
            "torchtune.training.metric_logging.TensorBoardLogger=tensorboard",
            "tensorboard or wandb"),
    mapped("metric_logger.project", "wandb.project"),
    no_effect("metric_logger.log_dir metric_logger.filename log_peak_memory_stats log_level",
              "metrics are in the run's folder, with memory"),
    mapped("log_every_n_steps", "log.every_steps"),
    no_effect("device tensor_parallel_plan tensor_parallel_dim data_parallel_shard_dim data_parallel_replicate_dim",
              "the build and the launcher decide"),
    derived("dtype", "dtype", "precision.compute", dtypes),
    mapped("enable_activation_checkpointing", "memory.recompute", recompute_if),
    no_effect("enable_activation_offloading ac_mode ac_option", "memory.recompute"),
    mapped("fsdp_cpu_offload fsdp.cpu_offload", "parallel.offload_optimizer", "true=cpu false="),
    mapped("profiler.enabled", "log.profile", "true=3 false="),
    no_effect("profiler._component_ profiler.output_dir profiler.cpu profiler.cuda profiler.profile_memory "
              "profiler.with_stack profiler.record_shapes profiler.with_flops profiler.wait_steps "
              "profiler.warmup_steps profiler.active_steps profiler.num_cycles",
              "log.profile"),
    no_effect("save_adapter_weights_only", "adapters are in the run's folder, and a checkpoint has the whole state"),
    unsupported("quantizer quantizer._component_ quantizer.groupsize", "[quantization], or llmtool quantize"),
    mapped("teacher_checkpointer.checkpoint_dir", "distill.teacher"),
    no_effect("teacher_model teacher_model._component_ teacher_model.lora_attn_modules "
              "teacher_checkpointer._component_ teacher_checkpointer.checkpoint_files "
              "teacher_checkpointer.recipe_checkpoint teacher_checkpointer.output_dir teacher_checkpointer.model_type",
              "distill.teacher is a folder, which says its family"),
    mapped("kd_loss._component_", "distill.loss", kd_losses, "SymmetricKLLoss is near jsd"),
    ruled("kd_ratio", set_kd_ratio, "distill.cross_entropy", "the loss is kd_ratio times the one here"),
    no_effect("ref_checkpointer ref_policy_checkpointer value_checkpointer",
              "the reference is the model before training"),
    mapped("reward_checkpointer.checkpoint_dir", "ppo.reward_model"),
    no_effect("reward_checkpointer reward_checkpointer._component_ reward_checkpointer.checkpoint_files "
              "reward_checkpointer.output_dir reward_checkpointer.model_type reward_and_value_model forward_batch_size",
              "ppo.reward_model is a folder"),
    mapped("ppo_epochs", "ppo.epochs"),
    unsupported("ppo_batch_size", "ppo.mini_batches: batch.global over it"),
    mapped("max_generated_tokens max_new_tokens", "rollout.max_new_tokens"),
    mapped("temperature", "rollout.temperature"),
    mapped("top_k", "rollout.top_k"),
    mapped("whiten_rewards", "ppo.whiten_rewards"),
    mapped("gamma", "ppo.gamma"),
    mapped("lmbda", "ppo.lambda"),
    mapped("kl_coeff", "ppo.kl_coefficient"),
    ruled("reward_penalty", set_reward_penalty, "ppo.missing_eos_penalty"),
    no_effect("penalise_no_eos min_response_length stop_token_ids",
              "ppo.missing_eos_penalty; EOS and the template's stop tokens end a completion"),
    unsupported("prompt prompt.system prompt.user prompt.user.text prompt.user.image tasks limit enable_kv_cache",
                "llmtool generate, and run.task = evaluate with evaluation.tasks"),
    unsupported(
        "model.decoder_trainable model.encoder_trainable model.fusion_trainable model.image_size tokenizer.image_size",
        "models read text"),
};

constexpr Default defaults[] = {{"clip_grad_norm", "0"}};
constexpr Alias aliases[] = {{"dataset_val.", "dataset."}, {"policy_model.", "model."}};
constexpr Hint hints[] = {
    {"teacher_checkpointer.checkpoint_dir", "distill"}, {"dataset._component_", "sft"}, {"model._component_", "sft"}};

}  // namespace

const System torchtune{"torchtune", "torchtune 0.6.1", entries, defaults, hints, {}, {}, aliases};

}  // namespace llmtrain::convert
