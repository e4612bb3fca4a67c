// TrainingArguments of Transformers; PEFT's LoraConfig; the configurations of TRL.
#include "convert/dataset_rules.hpp"
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

constexpr Entry transformers_entries[] = {
    derived("output_dir", "output_dir", "run.output, run.name", {}, "its parent and its last part"),
    derived("run_name", "run_name", "wandb.name, run.name"),
    derived("per_device_train_batch_size per_gpu_train_batch_size", "micro", "batch.micro, batch.global"),
    derived("gradient_accumulation_steps", "accumulation", "batch.global", {},
            "batch.global is the product with the batch of a GPU and the number of GPUs; it does not change with the "
            "ranks"),
    derived("num_train_epochs", "epochs", "run.epochs"),
    derived("max_steps", "max_steps", "run.max_steps", {}, "wins over epochs if it is above 0"),
    mapped("learning_rate", "schedule.learning_rate"),
    mapped("lr_scheduler_type", "schedule.name", schedulers, "linear or cosine are near most others"),
    mapped("lr_scheduler_kwargs.num_cycles", "schedule.num_cycles"),
    mapped("lr_scheduler_kwargs.power", "schedule.power"),
    mapped("lr_scheduler_kwargs.lr_end", "schedule.lr_end"),
    mapped("lr_scheduler_kwargs.min_lr", "schedule.min_learning_rate"),
    derived("lr_scheduler_kwargs.min_lr_rate lr_scheduler_kwargs.min_lr_ratio", "min_lr_rate",
            "schedule.min_learning_rate"),
    mapped("lr_scheduler_kwargs.timescale", "schedule.timescale"),
    mapped("lr_scheduler_kwargs.num_decay_steps", "schedule.decay_steps"),
    mapped("lr_scheduler_kwargs.decay_type", "schedule.decay_type", "linear cosine 1-sqrt"),
    no_effect("lr_scheduler_kwargs.num_stable_steps lr_scheduler_kwargs.num_training_steps",
              "follows from the run's length"),
    unsupported("lr_scheduler_kwargs", "the keys of [schedule]"),
    derived("warmup_steps", "warmup_steps", "schedule.warmup_steps, schedule.warmup_ratio", {},
            "below 1 it is a ratio"),
    derived("warmup_ratio", "warmup_ratio", "schedule.warmup_ratio", {}, "unless warmup_steps is above 0"),
    mapped("optim", "optimizer.name", optimizers, "adamw or adamw_8bit are near most others"),
    unsupported("optim_args optim_target_modules", "the keys of [optimizer]"),
    mapped("weight_decay", "optimizer.weight_decay"),
    mapped("adam_beta1", "optimizer.beta1"),
    mapped("adam_beta2", "optimizer.beta2"),
    mapped("adam_epsilon", "optimizer.epsilon"),
    mapped("max_grad_norm", "optimizer.max_grad_norm"),
    mapped("label_smoothing_factor", "objective.label_smoothing"),
    derived("bf16", "bf16", "precision.compute", yes_no),
    derived("fp16", "fp16", "precision.compute", yes_no),
    derived("tf32", "tf32", "precision.compute", yes_no),
    no_effect("bf16_full_eval fp16_full_eval half_precision_backend fp16_backend fp16_opt_level use_cuda_amp",
              "evaluations use precision.compute"),
    mapped("gradient_checkpointing activation_checkpointing", "memory.recompute", recompute_if),
    no_effect("gradient_checkpointing_kwargs activation_checkpointing_kwargs",
              "recomputation has one form, with the same bits"),
    no_effect("torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval",
              "kernels are compiled and fused already"),
    no_effect("use_liger_kernel liger_kernel_config", "kernels are fused already"),
    no_effect("use_cache use_legacy_prediction_loop past_index", "training keeps no cache of keys"),
    unsupported("neftune_noise_alpha", "model.dropout, another regularisation"),
    no_effect("torch_empty_cache_steps", "memory is planned before the first step"),
    unsupported("auto_find_batch_size",
                "llmtrain DECK --estimate prints the memory before the job; choose batch.micro"),
    no_effect("average_tokens_across_devices", "the loss is always a mean over all tokens of the step"),
    derived("logging_strategy", "logging_strategy", "log.every_steps", strategies),
    derived("logging_steps", "logging_steps", "log.every_steps"),
    no_effect("logging_first_step", "the first step is always logged"),
    no_effect("logging_nan_inf_filter", "[divergence] handles them"),
    no_effect("logging_dir", "event files are in the run's folder"),
    no_effect(
        "log_on_each_node log_level log_level_replica disable_tqdm include_num_input_tokens_seen skip_memory_metrics "
        "include_tokens_per_second debug",
        "there is one log, which always has tokens, memory and times"),
    derived("report_to", "sinks", "log.sinks", sinks, "tensorboard and wandb write files; others read metrics.jsonl"),
    mapped("project", "wandb.project"),
    no_effect("trackio_space_id trackio_bucket_id trackio_static_space_id", "nothing is sent over the network"),
    derived("eval_strategy evaluation_strategy", "eval_strategy", "evaluation.every_steps, evaluation.every_epochs",
            strategies),
    derived("eval_steps", "eval_steps", "evaluation.every_steps, evaluation.every_epochs"),
    unsupported("eval_delay", "evaluation.at_start = false leaves out the first one only"),
    no_effect("per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps",
              "evaluations use batch.micro, and their result does not depend on it"),
    mapped("eval_on_start", "evaluation.at_start"),
    no_effect(
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object include_for_metrics batch_eval_metrics "
        "include_inputs_for_metrics",
        "evaluation.metrics names metrics of texts"),
    derived("save_strategy", "save_strategy", "checkpoint.every_steps, checkpoint.every_epochs", strategies),
    derived("save_steps", "save_steps", "checkpoint.every_steps, checkpoint.every_epochs"),
    mapped("save_total_limit", "checkpoint.keep"),
    no_effect("save_only_model", "a checkpoint always has the whole state, so that the run can resume"),
    no_effect("save_on_each_node", "checkpoint.files = node writes one file for each node"),
    no_effect("save_safetensors", "exports are safetensors"),
    no_effect("enable_jit_checkpoint", "checkpoint.signal_save saves on a signal, as it is"),
    unsupported("push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token",
                "checkpoint.export = last, then hf upload <run>/export"),
    no_effect("hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
              "nothing is sent over the network"),
    mapped("load_best_model_at_end", "evaluation.load_best_at_end"),
    mapped(
        "metric_for_best_model", "checkpoint.best_metric",
        "loss=validation/loss eval_loss=validation/loss accuracy=validation/accuracy eval_accuracy=validation/accuracy "
        "f1=validation/macro_f1 eval_f1=validation/macro_f1")
        .for_tasks("classify"),
    mapped("metric_for_best_model", "checkpoint.best_metric", best_metrics,
           "checkpoint.best_metric names other metrics"),
    no_effect("greater_is_better", "follows from checkpoint.best_metric"),
    no_effect("ignore_data_skip restore_callback_states_from_checkpoint",
              "a run resumes at the same sample, with the same bits"),
    no_effect("full_determinism", "results are always deterministic"),
    mapped("seed", "run.seed"),
    mapped("data_seed", "data.seed"),
    no_effect("use_cpu no_cuda use_mps_device use_ipex", "the build decides: the host's or the GPU's program"),
    no_effect("accelerator_config mp_parameters split_batches",
              "the launcher starts the ranks, and the deck divides the batch"),
    unsupported("parallelism_config", "parallel.zero"),
    no_effect("dataloader_drop_last", "the last step of an epoch may be short"),
    no_effect("dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
              "dataloader_multiprocessing_context dataloader_in_order dispatch_batches",
              "the reader has threads of its own, and text is tokenized once"),
    no_effect("remove_unused_columns label_names", "columns that are not read are left alone"),
    ruled("train_sampling_strategy", set_sampling, "data.shuffle, data.group_by_length"),
    mapped("group_by_length", "data.group_by_length"),
    no_effect("length_column_name", "lengths are counted in tokens"),
    no_effect("local_rank ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
              "ddp_backend xpu_backend tpu_num_cores",
              "MPI gives the ranks; gradients are reduced in a fixed order"),
    no_effect("ddp_timeout", "[watchdog] finds lost and stuck ranks"),
    ruled("fsdp", set_fsdp, "parallel.zero, parallel.offload_optimizer",
          "full_shard is ZeRO 3, shard_grad_op is ZeRO 2"),
    no_effect("fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap",
              "ranks share single tensors; there is nothing to wrap"),
    ruled("deepspeed", read_deepspeed_file, "parallel.zero", "the file is converted, too"),
    no_effect("do_train do_eval do_predict overwrite_output_dir", "run.task and run.overwrite"),
    unsupported("resume_from_checkpoint",
                "submit the same command again: a run resumes by itself; model.path starts from "
                "exported weights",
                "true auto latest"),
    mapped("early_stopping_patience", "evaluation.early_stopping_patience"),
    mapped("early_stopping_threshold", "evaluation.early_stopping_threshold"),
};

constexpr Default transformers_defaults[] = {
    {"per_device_train_batch_size", "8"},
    {"num_train_epochs", "3"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"weight_decay", "0"},
    {"logging_steps", "500"},
    {"eval_strategy", "no"},
    {"save_steps", "500"},
    {"bf16", "false"},
    {"max_grad_norm", "1"},
};

constexpr Include transformers_includes[] = {{"deepspeed.", &deepspeed}};

constexpr std::string_view transformers_prefixes[] = {"TrainingArguments.", "Seq2SeqTrainingArguments.",
                                                      "training_args."};

constexpr std::string_view peft_targets = "without it PEFT goes by the model: q_proj, v_proj, or c_attn for GPT-2";

constexpr Entry peft_entries[] = {
    mapped("r", "lora.r"),
    mapped("lora_alpha", "lora.alpha"),
    mapped("lora_dropout", "lora.dropout"),
    ruled("target_modules", set_target_modules, "lora.target_modules", peft_targets),
    mapped("exclude_modules", "lora.exclude_modules"),
    mapped("bias", "lora.bias", "none all lora_only"),
    mapped("modules_to_save", "lora.modules_to_save"),
    mapped("layers_to_transform", "lora.layers_to_transform"),
    mapped("layers_pattern", "lora.layers_pattern"),
    ruled("rank_pattern", set_rank_pattern, "lora.rank_pattern"),
    ruled("alpha_pattern", set_alpha_pattern, "lora.alpha_pattern"),
    mapped("use_rslora", "lora.rslora"),
    mapped("use_dora", "lora.dora"),
    ruled("init_lora_weights", set_lora_init, "lora.init"),
    ruled("loftq_config.loftq_bits", set_loftq_bits, "quantization.bits"),
    ruled("loftq_config.loftq_iter", check_loftq_iterations, "lora.init"),
    ruled("task_type", set_adapter_task, "run.task, classify.kind"),
    no_effect("peft_type auto_mapping peft_version inference_mode revision fan_in_fan_out runtime_config "
              "megatron_core",
              "follows from the model and the task"),
    no_effect("base_model_name_or_path", "model.path"),
    no_effect("ensure_weight_tying", "a head that is the embedding is always trained with it"),
    unsupported("megatron_config trainable_token_indices eva_config corda_config lora_ga_config velora_config "
                "alora_invocation_tokens use_qalora monteclora_config layer_replication lora_bias use_bdlora "
                "arrow_config kasa_config",
                "plain LoRA, rsLoRA, DoRA and LoRA+ are supported"),
    unsupported("target_parameters",
                "lora.target_modules names the matrices of experts; lora.path reads such adapters"),
    no_effect("qalora_group_size", "belongs to use_qalora"),
};
constexpr Default peft_defaults[] = {{"r", "8"}, {"lora_alpha", "8"}, {"target_modules", "q_proj, v_proj"}};
constexpr std::string_view peft_prefixes[] = {"LoraConfig.", "peft_config.", "lora_config."};

constexpr std::string_view dpo_losses =
    "sigmoid hinge ipo robust exo_pair nca_pair bco_pair sppo_hard aot aot_unpaired aot_pair=aot_unpaired apo_zero "
    "apo_down discopop sigmoid_norm sft orpo simpo cpo kto kto_pair=kto";

/// The name of an end token; a dump of the arguments hides it as <EOS_TOKEN>.
std::string set_eos_token(Draft& draft, const SettingValue& value) {
  return value.text == "<EOS_TOKEN>" ? "" : draft.set("data.eos_token", value);
}

/// The column of texts, unless it has the usual name.
std::string set_text_field(Draft& draft, const SettingValue& value) {
  return value.text == "text" ? "" : set_column(draft, "text", value);
}

/// The divergence of GKD, whose teacher always runs.
std::string set_gkd_beta(Draft& draft, const SettingValue& value) {
  draft.set_text("distill.loss", "jsd");
  draft.set_text("distill.cache", "false");
  return draft.set("distill.beta", value);
}

/// The column of words, as in the examples of Transformers for tokens.
std::string set_words(Draft& draft, const SettingValue& value) {
  const std::string wrong = draft.set_text("classify.kind", "token");
  return !wrong.empty() || value.text == "tokens" ? wrong : set_column(draft, "tokens", value);
}

constexpr Entry trl_entries[] = {
    derived("task trainer", "task", "run.task",
            "sft dpo kto reward grpo rloo ppo orpo cpo simpo gkd=distill classify text-classification=classify "
            "token-classification=classify"),
    mapped("problem_type", "classify.problem",
           "single_label_classification=single multi_label_classification=multi regression"),
    mapped("do_regression", "classify.problem", "true=regression false="),
    ruled("text_column_name", set_words, "classify.kind, data.columns", "the column of words"),
    unsupported("label_column_name", "data.columns = label:NAME, or labels:NAME of words"),
    no_effect("num_labels id2label label2id return_entity_level_metrics",
              "the rows or classify.labels name the labels, and evaluations score each"),
    unsupported("label_all_tokens", "classify.kind = token labels the first token of a word", "false"),
    derived("model_name_or_path model_name", "model", "model.path"),
    no_effect("model_revision trust_remote_code attn_implementation low_cpu_mem_usage device_map",
              "a folder of files is read, without code of others; attention is always fused"),
    derived("dtype torch_dtype", "dtype", "precision.compute", dtypes),
    no_effect("model_init_kwargs", "model.path and precision.compute"),
    derived("use_peft", "finetuning", "run.finetuning", lora_if),
    mapped("lora_r", "lora.r"),
    mapped("lora_alpha", "lora.alpha"),
    mapped("lora_dropout", "lora.dropout"),
    ruled("lora_target_modules", set_target_modules, "lora.target_modules", peft_targets),
    mapped("lora_modules_to_save", "lora.modules_to_save"),
    no_effect("lora_task_type bnb_4bit_quant_storage bnb_4bit_compute_dtype",
              "follows from the task and precision.compute"),
    unsupported("lora_target_parameters", "lora.target_modules"),
    mapped("use_rslora", "lora.rslora"),
    mapped("use_dora", "lora.dora"),
    mapped("load_in_4bit", "quantization.bits", "true=4 false="),
    mapped("load_in_8bit", "quantization.bits", "true=8 false="),
    mapped("bnb_4bit_quant_type", "quantization.type", "nf4 fp4"),
    mapped("use_bnb_nested_quant bnb_4bit_use_double_quant", "quantization.double"),
    derived("dataset_name dataset train_file", "dataset", "data.train", {},
            "files of rows; the hub's data sets are not downloaded"),
    derived("eval_file validation_file", "validation_data", "data.validation"),
    ruled("datasets datasets.path datasets.data_files dataset_mixture.datasets.id", set_datasets, "data.train"),
    ruled("dataset_mixer", set_dataset_shares, "data.train"),
    unsupported("datasets.name datasets.data_dir datasets.split datasets.columns dataset_split dataset_splits "
                "dataset_mixture.datasets.config dataset_mixture.datasets.split dataset_mixture.datasets.columns "
                "dataset_mixture.datasets.weight",
                "the chosen rows and columns in files", "train default 1 1.0"),
    mapped("fim_rate", "data.fim_rate"),
    mapped("fim_spm_rate", "data.fim_spm_rate"),
    unsupported("fim_prefix_token fim_middle_token fim_suffix_token",
                "data.fim_tokens = prefix, middle, suffix, where the tokenizer has other names than known models"),
    unsupported("fim_split_sample fim_fragment_rate fim_no_prefix", "data.fim_rate cuts documents", "0 0.0"),
    no_effect("fim_data fim_pad_token fim_eod_token", "documents end with EOS, and no part is padded or cut off"),
    mapped("dataset_mixture.test_split_size", "data.validation_fraction", {},
           "a fraction; a number of rows is not supported"),
    no_effect("dataset_mixture.seed", "data.seed orders the rows"),
    ruled("dataset_prompt_column", set_column_of<"prompt">, "data.columns"),
    no_effect("dataset_config dataset_train_split dataset_test_split dataset_streaming dataset_num_proc dataset_kwargs "
              "skip_prepare_dataset dataset_batch_size preprocessing_num_workers",
              "data.train and data.validation name files, which are read in parallel and never whole"),
    mapped("dataset_text_field", "data.text_column", {}).for_tasks("pretrain"),
    ruled("dataset_text_field", set_text_field, "data.columns", "text is the usual name"),
    no_effect("ignore_bias_buffers", "these buffers do not exist"),
    mapped("max_length max_seq_length", "batch.sequence_length"),
    mapped("max_prompt_length", "dpo.max_prompt_length").for_tasks("dpo kto orpo cpo simpo"),
    derived("max_prompt_length", "prompt_length", "batch.sequence_length", {}, "plus the length of a completion"),
    mapped("truncation_mode", "data.overflow", "keep_start=truncate keep_end=truncate_left"),
    mapped("shuffle_dataset", "data.shuffle"),
    derived("packing", "packing", "data.packing", yes_no),
    derived("packing_strategy", "packing_strategy", "data.packing",
            "bfd=best_fit bfd_split=best_fit ffd=first_fit wrapped=wrap", "used with packing = true"),
    no_effect("padding_free pad_to_multiple_of eval_packing pad_token max_completion_length_padding",
              "samples are never padded"),
    ruled("eos_token", set_eos_token, "data.eos_token"),
    mapped("chat_template_path", "chat.template"),
    ruled("chat_template", set_jinja_template, "chat.template"),
    mapped("system_prompt", "chat.system"),
    mapped("completion_only_loss", "chat.train_on", "true=completion false=all"),
    mapped("assistant_only_loss", "chat.train_on", "true=assistant false="),
    mapped("loss_type", "run.task", "dft nll= chunked_nll=", "nll is the cross-entropy").for_tasks("sft"),
    mapped("loss_type", "dpo.loss", dpo_losses).for_tasks("dpo"),
    mapped("loss_type", "dpo.loss", "kto apo_zero_unpaired=").for_tasks("kto"),
    mapped("loss_type", "dpo.loss", "sigmoid=cpo hinge=hinge ipo simpo alphapo=").for_tasks("cpo orpo simpo"),
    mapped("loss_type", "grpo.loss", "grpo dr_grpo dapo bnpo rloo", "grpo and dapo are near most others")
        .for_tasks("grpo rloo"),
    mapped("loss_weights", "dpo.loss_weights"),
    mapped("beta", "dpo.beta").for_tasks("dpo kto orpo cpo simpo"),
    mapped("beta kl_coef", "grpo.beta").for_tasks("grpo rloo"),
    ruled("beta", set_gkd_beta, "distill.loss, distill.beta").for_tasks("distill"),
    mapped("lmbda", "distill.on_policy").for_tasks("distill"),
    mapped("teacher_model_name_or_path", "distill.teacher"),
    no_effect("teacher_model_init_kwargs", "distill.teacher and precision.compute"),
    unsupported("seq_kd", "run.task = generate with the teacher, then sft on its texts", "false"),
    mapped("max_new_tokens", "rollout.max_new_tokens").for_tasks("distill"),
    mapped("label_smoothing", "dpo.label_smoothing"),
    mapped("f_divergence_type", "dpo.f_divergence", "reverse_kl forward_kl js_divergence=js js alpha_divergence=alpha"),
    mapped("f_alpha_divergence_coef", "dpo.f_alpha"),
    mapped("simpo_gamma", "dpo.simpo_gamma"),
    derived("gamma_beta_ratio", "gamma_beta_ratio", "dpo.simpo_gamma", {}, "a multiple of beta"),
    mapped("desirable_weight", "dpo.desirable_weight"),
    mapped("undesirable_weight", "dpo.undesirable_weight"),
    mapped("reference_free", "dpo.reference", "true=none false="),
    mapped("ref_model ref_model_name_or_path", "dpo.reference"),
    mapped("precompute_ref_log_probs", "dpo.cache_reference"),
    no_effect("precompute_ref_batch_size", "batch.micro"),
    mapped("sync_ref_model", "dpo.sync_every", "true=512 false=").for_tasks("dpo kto"),
    mapped("ref_model_mixup_alpha", "dpo.sync_alpha").for_tasks("dpo kto"),
    no_effect("ref_model_sync_steps", "dpo.sync_every, 512 where sync_ref_model is true").for_tasks("dpo kto"),
    unsupported("sync_ref_model", "grpo.beta = 0 has no reference").for_tasks("grpo rloo"),
    no_effect("ref_model_mixup_alpha ref_model_sync_steps", "belongs to sync_ref_model").for_tasks("grpo rloo"),
    no_effect("disable_dropout", "dropout follows from the deck: model.dropout, 0 by default"),
    unsupported("cpo_alpha", "dpo.loss = simpo, sft with dpo.loss_weights"),
    unsupported("ld_alpha use_weighting", "the losses of docs/preferences.md"),
    no_effect("discopop_tau", "0.05, TRL's default"),
    no_effect("activation_offloading", "memory.recompute = block"),
    mapped("router_aux_loss_coef", "objective.router_aux", {},
           "TRL adds it where config.json has output_router_logits"),
    mapped("center_rewards_coefficient", "reward.center_coefficient"),
    no_effect("cast_lm_head_to_fp32 use_logits_to_keep", "softmax and loss are always fp32"),
    mapped("num_generations", "grpo.group_size"),
    no_effect("num_generations_eval", "grpo.group_size"),
    mapped("max_completion_length response_length", "rollout.max_new_tokens"),
    no_effect("ds3_gather_for_generation local_rollout_forward_batch_size", "layers are gathered one at a time"),
    unsupported("generation_batch_size steps_per_generation", "grpo.mini_batches: steps of a rollout"),
    mapped("temperature", "rollout.temperature"),
    mapped("top_p", "rollout.top_p"),
    mapped("top_k", "rollout.top_k"),
    unsupported("min_p generation_kwargs cache_implementation", "rollout.top_p and rollout.top_k"),
    unsupported("repetition_penalty", "rollout.temperature", "1.0 1"),
    unsupported("chat_template_kwargs", "chat.variables = name:value"),
    no_effect("use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex "
              "vllm_guided_decoding_regex vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
              "vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size "
              "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
              "vllm_importance_sampling_clip_min vllm_importance_sampling_cap use_transformers_continuous_batching "
              "transformers_continuous_batching_config use_transformers_paged",
              "the program generates by itself, with the policy's own probabilities"),
    mapped("num_iterations", "grpo.epochs"),
    mapped("epsilon", "grpo.epsilon"),
    mapped("epsilon_high", "grpo.epsilon_high"),
    mapped("delta", "grpo.delta"),
    no_effect("sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg",
              "belongs to unsupported losses"),
    unsupported("importance_sampling_level", "grpo.loss = rloo has one ratio for each completion", "token"),
    mapped("reward_weights", "rewards.weights"),
    unsupported("multi_objective_aggregation", "rewards.weights", "sum_then_normalize"),
    mapped("scale_rewards", "grpo.scale_rewards", "group batch none true=group false=none"),
    unsupported("mask_truncated_completions", "rewards.functions = length:N"),
    unsupported("top_entropy_quantile", "all tokens are trained", "1.0 1"),
    unsupported("entropy_coef use_adaptive_entropy", "objective.entropy_bonus with other tasks"),
    no_effect("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", "belongs to use_adaptive_entropy"),
    unsupported("max_tool_calling_iterations off_policy_mask_threshold normalize_advantages reward_clip_range",
                "the keys of [grpo]"),
    no_effect("use_bias_correction_kl", "completions come from the policy itself"),
    mapped("log_completions", "log.samples_every_steps", "true=100 false="),
    no_effect("log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo",
              "log.samples_every_steps"),
    unsupported("reward_funcs", "rewards.functions, such as exact:COLUMN or command:PROGRAM"),
    mapped("wandb_project", "wandb.project"),
    mapped("wandb_entity", "wandb.entity"),
    mapped("wandb_run_group", "wandb.group"),
    no_effect("hub_model_revision callbacks benchmarks vllm_device overwrite_hub_revision push_to_hub_revision",
              "nothing is sent over the network, and [evaluation] measures"),
    mapped("reward_model_path reward_model_name_or_path", "ppo.reward_model").for_tasks("ppo"),
    unsupported("reward_model_path reward_model_name_or_path", "rewards.functions = model:DIR"),
};

constexpr Default trl_defaults[] = {
    {"learning_rate", "2e-5", "sft distill"},
    {"beta", "0.5", "distill"},
    {"lmbda", "0.5", "distill"},
    {"temperature", "0.9", "distill"},
    {"max_new_tokens", "128", "distill"},
    {"learning_rate", "1e-6", "dpo kto grpo rloo orpo cpo simpo"},
    {"learning_rate", "1e-4", "reward"},
    {"beta", "0.1", "dpo kto orpo cpo simpo"},
    {"loss_type", "dapo", "grpo"},
    {"num_generations", "2", "rloo"},
    {"beta", "0.05", "rloo"},
    {"max_completion_length", "512", "grpo rloo"},
    {"temperature", "1", "grpo rloo"},
    {"max_length", "1024", "sft distill dpo kto reward orpo cpo simpo"},
    {"lora_r", "16", {}, "use_peft"},
    {"lora_alpha", "32", {}, "use_peft"},
    {"lora_dropout", "0.05", {}, "use_peft"},
    {"lora_target_modules", "q_proj, v_proj", {}, "use_peft"},
    {"LoraConfig.r", "8", {}, "LoraConfig"},
    {"LoraConfig.lora_alpha", "8", {}, "LoraConfig"},
    {"LoraConfig.target_modules", "q_proj, v_proj", {}, "LoraConfig"},
    {"bf16", "true"},
    {"gradient_checkpointing", "true"},
    {"logging_steps", "10"},
    {"per_device_train_batch_size", "8"},
    {"num_train_epochs", "3"},
    {"lr_scheduler_type", "linear"},
    {"weight_decay", "0"},
    {"eval_strategy", "no"},
    {"save_steps", "500"},
};

constexpr Hint trl_hints[] = {
    {"SFTConfig", "sft"},
    {"DPOConfig", "dpo"},
    {"KTOConfig", "kto"},
    {"GRPOConfig", "grpo"},
    {"RLOOConfig", "rloo"},
    {"RewardConfig", "reward"},
    {"ORPOConfig", "orpo"},
    {"CPOConfig", "cpo"},
    {"PPOConfig", "ppo"},
    {"GKDConfig", "distill"},
    {"teacher_model_name_or_path", "distill"},
    {"lmbda", "distill"},
    {"num_generations", "grpo"},
    {"problem_type", "classify"},
    {"do_regression", "classify"},
    {"text_column_name", "classify"},
    {"return_entity_level_metrics", "classify"},
    {"gamma_beta_ratio", "simpo"},
    {"desirable_weight", "kto"},
    {"center_rewards_coefficient", "reward"},
    {"precompute_ref_log_probs", "dpo"},
    {"f_divergence_type", "dpo"},
    {"loss_weights", "dpo"},
    {"beta", "dpo"},
    {"max_prompt_length", "dpo"},
    {"output_dir", "sft"},
    {"model_name_or_path", "sft"},
    {"learning_rate", "sft"},
};

constexpr Include trl_includes[] = {{"", &transformers}, {"LoraConfig.", &peft}, {"peft_config.", &peft}};

constexpr std::string_view trl_prefixes[] = {"SFTConfig.",     "DPOConfig.",    "KTOConfig.",       "GRPOConfig.",
                                             "RLOOConfig.",    "RewardConfig.", "ORPOConfig.",      "CPOConfig.",
                                             "PPOConfig.",     "GKDConfig.",    "ScriptArguments.", "ModelConfig.",
                                             "training_args.", "script_args.",  "model_args."};

}  // namespace

const System transformers{"transformers",
                          "Transformers 5.24 (TrainingArguments)",
                          transformers_entries,
                          transformers_defaults,
                          {},
                          transformers_includes,
                          transformers_prefixes};
const System peft{"peft", "PEFT 0.21 (LoraConfig)", peft_entries, peft_defaults, {}, {}, peft_prefixes};
const System trl{"trl", "TRL 1.16", trl_entries, trl_defaults, trl_hints, trl_includes, trl_prefixes};

}  // namespace llmtrain::convert
