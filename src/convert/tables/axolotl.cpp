// Axolotl's YAML.
#include <fmt/format.h>

#include "convert/dataset_rules.hpp"
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_flex_dtype(Draft& draft, const SettingValue& value, std::string_view fact) {
  draft.set_fact(fact, value.boolean().value_or(value.text == "full") ? "true" : "false");
  return "";
}
std::string set_bf16(Draft& draft, const SettingValue& value) { return set_flex_dtype(draft, value, "bf16"); }
std::string set_fp16(Draft& draft, const SettingValue& value) { return set_flex_dtype(draft, value, "fp16"); }
std::string set_tf32(Draft& draft, const SettingValue& value) { return set_flex_dtype(draft, value, "tf32"); }

/// Sets every_epochs of a section from a number of times in each epoch; 0 is never.
std::string set_times_per_epoch(Draft& draft, const SettingValue& value, const std::string& section) {
  const std::optional<double> times = value.number();
  if (!times || *times < 0) return value.print() + ": must be a number of times";
  if (*times == 0) return draft.set_text(section + ".every_steps", "0");
  return draft.set_text(section + ".every_epochs", print_number(1 / *times));
}
std::string set_evaluations_per_epoch(Draft& draft, const SettingValue& value) {
  return set_times_per_epoch(draft, value, "evaluation");
}
std::string set_saves_per_epoch(Draft& draft, const SettingValue& value) {
  return set_times_per_epoch(draft, value, "checkpoint");
}

std::string set_wandb(Draft& draft, const SettingValue& value) {
  if (value.text.empty()) return "";
  draft.set_fact("sinks", "wandb");
  return draft.set("wandb.project", value);
}

/// Keeps the batch of a GPU and the sequences of a step of one GPU until both are known: passes are their ratio.
std::string set_batch_fact(Draft& draft, const SettingValue& value, std::string_view fact) {
  if (value.integer().value_or(0) < 1) return value.print() + ": must be a number of sequences";
  draft.set_fact(fact, std::to_string(*value.integer()));
  const int64_t micro = draft.fact_count("micro").value_or(0), whole = draft.fact_count("batch_of_gpu").value_or(0);
  const Draft::Given* const passes = draft.fact("accumulation");
  if (micro == 0 || whole == 0 || (passes && draft.is_default())) return "";
  if (passes) return passes->origin + " determines the passes already";
  draft.set_fact("accumulation", std::to_string(std::max<int64_t>(whole / micro, 1)));
  return whole % micro == 0 ? "" : fmt::format("{} is not a multiple of the {} sequences of a pass", whole, micro);
}
std::string set_micro(Draft& draft, const SettingValue& value) { return set_batch_fact(draft, value, "micro"); }
std::string set_batch(Draft& draft, const SettingValue& value) { return set_batch_fact(draft, value, "batch_of_gpu"); }

/// Modules of a list that all-linear leaves out, or "".
std::string beyond_linear(const Draft& draft) {
  const Draft::Given* const modules = draft.fact("modules");
  if (!modules || !draft.is_fact("all_linear", "true")) return "";
  const bool beyond = has_word(modules->text, "lm_head") || has_word(modules->text, "embed_tokens");
  return beyond ? "all-linear has neither the head nor the embedding: lora.modules_to_save" : "";
}

/// lora_target_linear: all linear layers, and so those of lora_target_modules, too.
std::string set_target_linear(Draft& draft, const SettingValue& value) {
  if (!value.boolean().value_or(false)) return "";
  draft.set_fact("all_linear", "true");
  const std::string wrong = draft.replace("lora.target_modules", "all-linear");
  return wrong.empty() ? beyond_linear(draft) : wrong;
}

std::string set_modules(Draft& draft, const SettingValue& value) {
  std::string names = value.text;
  for (const SettingValue& item : value.items) names += " " + item.text;
  draft.set_fact("modules", names);
  return draft.is_fact("all_linear", "true") ? beyond_linear(draft) : set_target_modules(draft, value);
}

/// IPO is a loss of DPO.
std::string set_rl(Draft& draft, const SettingValue& value) {
  return value.text == "ipo" ? draft.set_text("dpo.loss", "ipo") : "";
}

/// The trained roles of a conversation.
std::string set_roles_to_train(Draft& draft, const SettingValue& value) {
  const bool one = !value.is(SettingValue::Kind::list);
  for (const SettingValue& item : one ? std::vector<SettingValue>{value} : value.items) {
    if (!has_word("assistant gpt", item.text)) return item.print() + " is not trained alone; assistant is";
  }
  return !one && value.items.empty() ? "no role is trained" : draft.set_text("chat.train_on", "assistant");
}

constexpr std::string_view row_types = "alpaca chat_template=messages sharegpt completion=text";
std::string set_type(Draft& draft, const SettingValue& value) {
  const std::string wrong = set_row_format_of(draft, value, row_types);
  return wrong.empty() && value.text == "alpaca" ? use_template_of_rows(draft, "alpaca", "alpaca") : wrong;
}

/// The types of preferences with the roles of columns that have names of their own. chatml and llama3 stand before
/// those without a dot.
constexpr std::string_view pair_types =
    "argilla=prompt:instruction,chosen:chosen_response,rejected:rejected_response argilla_chat= icr=prompt:input "
    "intel=prompt:question prompt_pairs= ultra= chat_template.argilla= chat_template.argilla_chat= "
    "chat_template.default= bradley_terry.chat_template=prompt:input";
constexpr std::string_view unpaired_types = "argilla=prompt:instruction intel=prompt:question prompt_pairs= ultra=";
constexpr std::string_view pairs_of_messages =
    "argilla_chat ultra chat_template.argilla chat_template.argilla_chat chat_template.default";

constexpr std::string_view other_pair_types =
    "chosen and rejected are texts or lists of messages; for other types data.format = preference or unpaired, with "
    "data.columns, as in prompt:question, chosen:better";

std::string set_preference_type(Draft& draft, const SettingValue& value, const std::string& format) {
  const bool paired = format == "preference";
  const std::string name = value.text.substr(0, value.text.find('.'));
  const bool has_template = has_word("chatml llama3", name) && name != value.text;
  const std::string type = has_template ? value.text.substr(name.size() + 1) : value.text;
  const std::optional<std::string> columns = translated(paired ? pair_types : unpaired_types, type);
  const bool is_whole_name = type.find('.') != std::string::npos;
  if (!columns || has_template == is_whole_name) return set_row_format_of(draft, value, "");
  if (std::string wrong = set_row_format(draft, format); !wrong.empty()) return wrong;
  if (std::string wrong = set_columns(draft, *columns); !wrong.empty()) return wrong;
  if (!paired || !has_word(pairs_of_messages, type)) {
    draft.remark(draft.origin() +
                 ": texts have no chat template around them here; write prompts and answers as lists of messages.");
  }
  return has_template ? use_template_of_rows(draft, value.text, name) : "";
}
std::string set_pair_type(Draft& draft, const SettingValue& value) {
  return set_preference_type(draft, value, "preference");
}
std::string set_unpaired_type(Draft& draft, const SettingValue& value) {
  return set_preference_type(draft, value, "unpaired");
}

constexpr std::string_view chat_templates =
    "tokenizer_default=auto llama2 llama3 chatml qwen_25=qwen qwen3 mistral_v1=mistral alpaca gemma phi_3=phi3 "
    "phi_35=phi3 none";

/// The factor of the divergence, of which the loss is a multiple here.
std::string set_kd_alpha(Draft& /*draft*/, const SettingValue& value) {
  return value.number() == 1
             ? ""
             : "the divergence has the factor 1: divide kd_ce_alpha by kd_alpha, as distill.cross_entropy";
}

/// The weight of the teacher in the mixture; 0 is the forward divergence.
std::string set_kd_beta(Draft& draft, const SettingValue& value) {
  if (value.number() == 0) return draft.set_text("distill.loss", "forward_kl");
  draft.set_text("distill.loss", "jsd");
  return draft.set("distill.beta", value);
}

constexpr Entry entries[] = {
    derived("base_model", "model", "model.path"),
    no_effect("base_model_config cls_model_config tokenizer_config model_type tokenizer_type tokenizer_use_fast "
              "tokenizer_legacy tokenizer_use_mistral_common tokenizer_save_jinja_files processor_type "
              "processor_kwargs trust_remote_code experimental_skip_move_to_device use_kernels revision_of_model "
              "type_of_model is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
              "is_qwen_derived_model low_cpu_mem_usage device device_map",
              "follows from config.json and the tokenizer's files in model.path"),
    unsupported("overrides_of_model_config overrides_of_model_kwargs model_quantization_config "
                "model_quantization_config_kwargs use_onebitllms "
                "ple_cpu_offload llama4_linearized_experts",
                "the folder's config.json, and [quantization]"),
    no_effect("hub_model_id hub_strategy hub_revision save_safetensors push_dataset_to_hub hf_use_auth_token",
              "nothing is sent over the network"),
    Entry{"rl", Effect::mapped, "run.task, dpo.loss", "dpo ipo=dpo kto orpo simpo grpo", {}, "task", set_rl},
    mapped("reward_model", "run.task", "true=reward false="),
    unsupported("process_reward_model ebft qat trainer_cls diffusion llmcompressor dynamic_checkpoint "
                "dynamic_checkpoint.enabled dynamic_checkpoint.check_interval dynamic_checkpoint.trigger_file_path "
                "quantization",
                "the tasks of run.task; a signal saves a checkpoint at once"),
    no_effect("num_labels", "a reward model has one score"),
    unsupported("plugins", "kernels and losses are built in",
                "axolotl.integrations.liger.LigerPlugin "
                "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin "
                "axolotl.integrations.kernels.KernelsPlugin axolotl.integrations.spectrum.SpectrumPlugin"),
    mapped("expert_parallel_size", "parallel.expert"),
    no_effect("use_scattermoe use_sonicmoe experts_implementation", "experts have kernels of their own"),
    no_effect("expert_parallel_num_nvl_bytes expert_parallel_token_capacity", "no token is dropped"),
    no_effect("quantize_moe_experts", "[quantization] takes experts as other matrices"),
    unsupported("use_dsv4_kernels use_glm_dsa_kernels dsv4_fp4_grouped_mode nvfp4_merge_aware",
                "the families of model.family"),
    no_effect("gptq gptq_groupsize gptq_model_v1 gptq_disable_exllama",
              "config.json of the folder in model.path says how it is quantised"),
    mapped("dpo_label_smoothing", "dpo.label_smoothing"),
    mapped("center_rewards_coefficient", "reward.center_coefficient"),
    mapped("dpo_loss_type", "dpo.loss",
           "sigmoid hinge ipo robust exo_pair nca_pair bco_pair sppo_hard aot aot_unpaired apo_zero apo_down discopop "
           "sft"),
    mapped("dpo_loss_weights", "dpo.loss_weights"),
    mapped("precompute_ref_log_probs", "dpo.cache_reference"),
    no_effect("dpo_use_liger_kernel dpo_padding_free dpo_use_logits_to_keep dpo_generate_during_eval",
              "kernels are fused, and pairs have no padding"),
    unsupported("dpo_use_weighting dpo_norm_loss rpo_alpha",
                "dpo.loss = sigmoid_norm, or sigmoid, sft with dpo.loss_weights"),
    no_effect("kd_trainer kd_zscore_base_temp kd_top_k_before_softmax",
              "run.task = distill; the temperature comes before the choice of words"),
    mapped("kd_ce_alpha", "distill.cross_entropy"),
    ruled("kd_alpha", set_kd_alpha, "distill.loss"),
    mapped("kd_temperature", "distill.temperature", {}, "the loss is not multiplied with its square"),
    ruled("kd_beta", set_kd_beta, "distill.loss, distill.beta"),
    mapped("kd_normalize_topk", "distill.tail", "true=false false=true"),
    mapped("kd_online_topk kd_top_k", "distill.top_k"),
    no_effect("kd_online_server_base_url kd_online_server kd_online_timeout",
              "distill.teacher is a folder: the program runs the teacher itself"),
    mapped("rl_beta dpo_beta", "dpo.beta"),
    mapped("orpo_alpha", "dpo.beta"),
    mapped("simpo_gamma", "dpo.simpo_gamma"),
    unsupported("cpo_alpha", "dpo.loss = cpo, sft with dpo.loss_weights"),
    mapped("kto_desirable_weight", "dpo.desirable_weight"),
    mapped("kto_undesirable_weight", "dpo.undesirable_weight"),
    mapped("max_prompt_len", "dpo.max_prompt_length"),
    ruled("datasets pretraining_dataset datasets.path datasets.data_files pretraining_dataset.path "
          "pretraining_dataset.data_files",
          set_datasets, "data.train", "files; the rows of the hub's data sets have to be written to files"),
    Entry{"datasets.type",
          Effect::mapped,
          "data.format",
          row_types,
          "the prompt is that of chat.template; for other types name the columns in "
          "data.columns, or write the rows in a format of docs/data.md",
          {},
          set_type}
        .for_tasks("pretrain sft distill"),
    ruled("datasets.type", set_pair_type, "data.format, data.columns, chat.template", other_pair_types)
        .for_tasks("dpo orpo simpo reward"),
    ruled("datasets.type", set_unpaired_type, "data.format, data.columns, chat.template", other_pair_types)
        .for_tasks("kto"),
    unsupported("datasets.type", "rows with prompts: data.format = prompt, with data.columns"),
    ruled("datasets.type.field_instruction", set_format_and_column<"alpaca", "prompt">, "data.columns, data.format"),
    ruled("datasets.type.field_input", set_format_and_column<"alpaca", "query">, "data.columns, data.format"),
    ruled("datasets.type.field_output", set_format_and_column<"alpaca", "response">, "data.columns, data.format"),
    ruled("datasets.type.field_chosen", set_format_and_column<"preference", "chosen">, "data.columns, data.format"),
    ruled("datasets.type.field_rejected", set_format_and_column<"preference", "rejected">, "data.columns, data.format"),
    ruled("datasets.type.field_completion", set_format_and_column<"unpaired", "completion">,
          "data.columns, data.format"),
    ruled("datasets.type.field_label", set_format_and_column<"unpaired", "label">, "data.columns, data.format"),
    ruled("datasets.type.field_prompt", set_column_of<"prompt">, "data.columns"),
    ruled("datasets.type.field_system datasets.field_system", set_column_of<"system">, "data.columns"),
    mapped("datasets.type.system_prompt", "chat.system"),
    unsupported("datasets.type.field datasets.type.format datasets.type.no_input_format datasets.type.system_format "
                "datasets.type.prompt_format datasets.type.chosen_format datasets.type.rejected_format "
                "datasets.type.completion_format datasets.type.step_separator datasets.type.max_completion_length "
                "datasets.type.train_on_last_step_only",
                "chat.template names a Jinja file with the words around the columns"),
    mapped("datasets.field", "data.text_column").for_tasks("pretrain"),
    ruled("datasets.field", set_column_of<"text">, "data.columns", "the text of type completion"),
    mapped("pretraining_dataset.text_column pretraining_dataset.field", "data.text_column"),
    ruled("datasets.field_instruction", set_column_of<"prompt">, "data.columns"),
    ruled("datasets.field_input", set_column_of<"query">, "data.columns"),
    ruled("datasets.field_output", set_column_of<"response">, "data.columns"),
    ruled("datasets.field_chosen", set_format_and_column<"preference", "chosen">, "data.columns, data.format"),
    ruled("datasets.field_rejected", set_format_and_column<"preference", "rejected">, "data.columns, data.format"),
    ruled("datasets.field_messages", set_column_of<"prompt">, "data.columns", "the messages before the two answers")
        .for_tasks("dpo orpo simpo"),
    ruled("datasets.field_messages", set_column_of<"messages">, "data.columns"),
    ruled("datasets.field_tools", set_column_of<"tools">, "data.columns"),
    ruled("datasets.message_field_role", set_column_of<"role">, "data.columns"),
    ruled("datasets.message_field_content", set_column_of<"content">, "data.columns"),
    ruled("datasets.message_property_mappings", set_message_keys, "data.columns, data.format",
          "role and content; with role: from, data.format = sharegpt"),
    ruled("datasets.roles_to_train", set_roles_to_train, "chat.train_on", "assistant, or chat.train_on = all"),
    unsupported("datasets.train_on_eos datasets.train_on_eot", "a trained turn has its stop token", "turn"),
    unsupported("datasets.roles", "rows whose roles are system, user, assistant and tool, or human and gpt"),
    unsupported("datasets.split pretraining_dataset.split", "the rows of the split in files, as by llmtool split",
                "train"),
    unsupported("datasets.shards datasets.shards_idx pretraining_dataset.skip", "files with these rows", "1"),
    unsupported("datasets.name pretraining_dataset.name", "the rows of this configuration in files"),
    unsupported("datasets.ds_type datasets.format pretraining_dataset.ds_type",
                "rows as JSON lines or a table: docs/data.md", "json text csv parquet arrow"),
    mapped("datasets.chat_template", "chat.template", chat_templates),
    ruled("datasets.chat_template_jinja", set_jinja_template, "chat.template"),
    unsupported("datasets.conversation", "chat.template"),
    unsupported("datasets.drop_system_message datasets.split_thinking datasets.field_thinking "
                "datasets.template_thinking_key datasets.message_field_training "
                "datasets.message_field_training_detail datasets.field_human datasets.field_model "
                "datasets.input_format datasets.input_transform datasets.logprobs_field datasets.temperature",
                "rows that have the messages as they are trained on, and chat.template"),
    no_effect("datasets.preprocess_shards datasets.revision datasets.trust_remote_code datasets.source "
              "pretraining_dataset.trust_remote_code pretraining_dataset.revision pretraining_dataset.type",
              "files are read as they are, in parallel"),
    ruled("test_datasets test_datasets.path test_datasets.data_files", set_validation_datasets, "data.validation",
          "files; the rows of the hub's data sets have to be written to files"),
    mapped("shuffle_merged_datasets", "data.shuffle"),
    no_effect("shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx "
              "skip_prepare_dataset num_dataset_shards_to_save dataset_processes dataset_num_proc "
              "dataset_keep_in_memory is_preprocess preprocess_iterable total_num_tokens total_supervised_tokens "
              "axolotl_config_path streaming streaming_multipack_buffer_size pretrain_multipack_buffer_size "
              "pretrain_multipack_attn pretraining_sample_concatenation",
              "text is tokenized once, in parallel, into data.cache, and read in parts"),
    unsupported("dataset_exact_deduplication", "llmtool validate counts duplicates"),
    mapped("val_set_size", "data.validation_fraction", {}, "a fraction; a number of rows is not supported"),
    derived("world_size", "world", "batch.global"),
    no_effect("ddp remove_unused_columns accelerator_config local_rank ddp_find_unused_parameters",
              "MPI gives the ranks"),
    no_effect("do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split eval_table_size "
              "eval_max_new_tokens eval_sequence_len eval_batch_size",
              "evaluation.metrics and evaluation.tasks"),
    mapped("loss_watchdog_threshold", "divergence.spike_z_score", "0=", "the threshold here is in standard deviations"),
    mapped("loss_watchdog_patience", "divergence.max_bad_steps"),
    no_effect("gc_steps torch_empty_cache_steps gc_collect_steps max_memory gpu_memory_limit",
              "memory is planned before the first step"),
    ruled("bf16 bfloat16", set_bf16, "precision.compute"),
    ruled("fp16 float16", set_fp16, "precision.compute"),
    ruled("tf32", set_tf32, "precision.compute"),
    no_effect("float32 fp32_norms fp32_norm_classes embeddings_skip_upcast flash_attn_rms_norm",
              "norms and the loss are always fp32"),
    unsupported("fp8 fp8_config", "precision.compute = bf16"),
    no_effect("fp8_enable_fsdp_float8_all_gather", "belongs to fp8"),
    mapped("gradient_checkpointing", "memory.recompute", "true=block false=none offload=block offload_disk=block"),
    no_effect("selective_checkpointing activation_offloading layer_offloading freeze_mm_modules", "memory.recompute"),
    unsupported("unfrozen_parameters", "run.finetuning = freeze with freeze.trainable_modules"),
    mapped("sequence_len max_packed_sequence_len", "batch.sequence_length"),
    mapped("excess_length_strategy", "data.overflow", "drop truncate raise=error"),
    mapped("min_sample_len", "data.min_length"),
    mapped("sample_packing", "data.packing", "true=best_fit false=none"),
    no_effect(
        "sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method "
        "sample_packing_eff_est eval_sample_packing pad_to_sequence_len pad_to_multiple_of multipack_real_batches "
        "batch_flattening",
        "packs are planned over the whole data, and nothing is padded"),
    mapped("curriculum_sampling", "data.shuffle", "true=false false="),
    unsupported("use_pose shrink_embeddings reinit_weights fix_untrained_tokens", "the model as it is"),
    no_effect("pose_split_on_token_ids pose_max_context_len pose_num_chunks", "belongs to use_pose"),
    no_effect("resize_token_embeddings_to_32x mean_resizing_embeddings",
              "data.add_tokens adds rows, which begin as the mean of the others"),
    no_effect(
        "xformers_attention sdp_attention flex_attention flex_attn_compile_kwargs flash_attention "
        "flash_attn_cross_entropy flash_attn_fuse_mlp flash_optimum sage_attention eager_attention attn_implementation "
        "gemma4_hybrid_attn_impl cut_cross_entropy liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm "
        "liger_glu_activation liger_swiglu liger_cross_entropy liger_fused_linear_cross_entropy large_head_attention "
        "flash_attn_d512 sdpa_varlen fused_attn_kernel lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
        "lora_embedding_kernel chunked_cross_entropy chunked_cross_entropy_num_chunks tiled_mlp tiled_mlp_num_shards "
        "tiled_mlp_use_original_mlp torch_compile_options deepcompile",
        "attention, the loss and adapters are fused already"),
    unsupported("s2_attention scaling_softmax use_eaft", "model.sliding_window, and the cross-entropy"),
    no_effect("scaling_softmax_factor scaling_softmax_bias eaft_alpha eaft_k", "belongs to unsupported keys"),
    unsupported("rope_scaling", "rope_scaling in the config.json of model.path; model.rope_scaling is for new models"),
    no_effect("fsdp_version fsdp_final_state_dict_type", "checkpoints can be read by any number of ranks"),
    unsupported("dp_shard_size dp_replicate_size sequence_parallel_degree context_parallel_size tensor_parallel_size",
                "parallel.zero", "1"),
    no_effect("heads_k_stride ring_attn_func", "belongs to context parallelism"),
    mapped("special_tokens.eos_token", "data.eos_token"),
    no_effect("special_tokens.pad_token special_tokens", "samples are never padded"),
    unsupported("special_tokens.bos_token special_tokens.unk_token special_tokens.additional_special_tokens "
                "added_tokens_overrides",
                "the tokenizer's files in model.path, and data.add_tokens"),
    mapped("tokens", "data.add_tokens"),
    ruled("micro_batch_size", set_micro, "batch.micro, batch.global"),
    ruled("batch_size", set_batch, "batch.global",
          "per GPU: divided by micro_batch_size it is the number of passes, the same on every GPU"),
    ruled("train_on_inputs", train_on_prompt, "chat.train_on"),
    mapped("optimizer", "optimizer.name", optimizers, "adamw or adamw_8bit"),
    mapped("lr_scheduler", "schedule.name", schedulers, "cosine"),
    unsupported("embedding_lr embedding_lr_scale lr_groups lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor "
                "torchdistx_path jagged_restart_steps jagged_restart_warmup_steps jagged_restart_anneal_steps "
                "adam_epsilon2 adam_beta3",
                "the keys of [schedule]; lora.learning_rate_ratio"),
    derived("cosine_min_lr_ratio", "min_lr_rate", "schedule.min_learning_rate"),
    no_effect("dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank qgalore_update_proj_gap "
              "qgalore_scale qgalore_proj_type qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size "
              "qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size",
              "belongs to an unsupported optimizer"),
    derived("num_epochs", "epochs", "run.epochs"),
    ruled("evals_per_epoch", set_evaluations_per_epoch, "evaluation.every_epochs, evaluation.every_steps"),
    ruled("saves_per_epoch", set_saves_per_epoch, "checkpoint.every_epochs, checkpoint.every_steps"),
    no_effect("save_first_step auto_resume_from_checkpoints", "a run resumes by itself"),
    derived("use_tensorboard", "sinks", "log.sinks", "true=tensorboard false="),
    mapped("profiler_steps", "log.profile"),
    no_effect("profiler_steps_start include_tkps strict noisy_embedding_alpha",
              "log.profile; the log has tokens per second"),
    ruled("wandb_project", set_wandb, "log.sinks, wandb.project"),
    derived("use_wandb", "sinks", "log.sinks", "true=wandb false="),
    derived("wandb_name", "run_name", "wandb.name"),
    mapped("wandb_entity", "wandb.entity"),
    no_effect("wandb_run_id wandb_mode wandb_watch wandb_log_model", "one offline run for each run directory"),
    unsupported("use_mlflow use_comet use_trackio use_otel_metrics use_swanlab", "log.sinks = tensorboard"),
    no_effect("mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts comet_api_key "
              "comet_workspace comet_project_name comet_experiment_key comet_mode comet_online comet_experiment_config "
              "trackio_project_name trackio_run_name otel_metrics_host otel_metrics_port swanlab_project "
              "swanlab_workspace swanlab_mode swanlab_description swanlab_experiment_name swanlab_log_model "
              "swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer",
              "nothing is sent over the network"),
    unsupported("lisa_n_layers", "run.finetuning = freeze"),
    no_effect("lisa_step_interval lisa_layers_attribute", "belongs to LISA"),
    no_effect("gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens "
              "gradio_temperature use_ray ray_run_name ray_num_workers resources_per_worker",
              "mpirun or srun starts the ranks; llmtool generate writes text"),
    mapped("chat_template", "chat.template", chat_templates),
    ruled("chat_template_jinja", set_jinja_template, "chat.template"),
    unsupported("chat_template_kwargs", "chat.variables = name:value"),
    unsupported("eot_tokens", "a trained turn has the stop token of its template"),
    mapped("default_system_message", "chat.system"),
    mapped("generate_samples", "log.samples_every_steps", "true=100 false="),
    no_effect("num_generation_samples generation_prompt_ratio generation_do_sample", "log.sample_prompts"),
    mapped("generation_max_new_tokens", "log.sample_length"),
    mapped("generation_temperature", "log.sample_temperature"),
    mapped("generation_top_p", "log.sample_top_p"),
    mapped("generation_top_k", "log.sample_top_k"),
    mapped("load_in_8bit", "quantization.bits", "true=8 false="),
    mapped("load_in_4bit", "quantization.bits", "true=4 false="),
    derived("adapter", "finetuning", "run.finetuning", "lora qlora",
            "lora or qlora; without it all weights are trained"),
    mapped("lora_model_dir", "lora.path"),
    mapped("lora_r", "lora.r"),
    mapped("lora_alpha", "lora.alpha"),
    mapped("lora_dropout", "lora.dropout"),
    ruled("lora_target_modules", set_modules, "lora.target_modules"),
    ruled("lora_target_linear", set_target_linear, "lora.target_modules", "true: all-linear, whatever is listed"),
    mapped("lora_modules_to_save", "lora.modules_to_save"),
    ruled("lora_rank_pattern", set_rank_pattern, "lora.rank_pattern"),
    ruled("lora_alpha_pattern", set_alpha_pattern, "lora.alpha_pattern"),
    mapped("peft_layers_to_transform", "lora.layers_to_transform"),
    mapped("peft_layers_pattern", "lora.layers_pattern"),
    mapped("peft_use_dora", "lora.dora"),
    mapped("peft_use_rslora", "lora.rslora"),
    ruled("peft_init_lora_weights", set_lora_init, "lora.init"),
    mapped("loraplus_lr_ratio", "lora.learning_rate_ratio"),
    no_effect("lora_fan_in_fan_out peft_autocast_adapter_dtype qlora_sharded_model_loading lora_on_cpu "
              "loraplus_lr_embedding peft_ensure_weight_tying",
              "adapters are fp32; loading goes in parts"),
    unsupported(
        "lora_target_parameters peft peft_layer_replication peft_trainable_token_indices bnb_config_kwargs relora",
        "[lora] and [quantization]"),
    no_effect("relora_prune_ratio relora_prune_method relora_cpu_offload", "belongs to relora"),
    no_effect("merge_lora merge_method", "llmtool merge, checkpoint.export_merged"),
    no_effect("image_size image_resize_algorithm role_boundaries", "models read text"),
    unsupported("vllm", "the program generates by itself"),
};

constexpr Default defaults[] = {
    {"micro_batch_size", "1"},  {"gradient_accumulation_steps", "1"},
    {"num_epochs", "1"},        {"sequence_len", "512"},
    {"lr_scheduler", "cosine"}, {"weight_decay", "0"},
    {"learning_rate", "5e-5"},  {"warmup_ratio", "0.03"},
    {"save_strategy", "epoch"}, {"save_total_limit", "4"},
};

constexpr Hint hints[] = {{"kd_trainer", "distill"},
                          {"pretraining_dataset", "pretrain"},
                          {"reward_model", "reward"},
                          {"base_model", "sft"},
                          {"datasets", "sft"}};
constexpr Include includes[] = {{"trl.", &trl}, {"", &transformers}};
constexpr Alias aliases[] = {{"test_datasets.", "datasets."}};

}  // namespace

const System axolotl{"axolotl", "Axolotl 0.19", entries, defaults, hints, includes, {}, aliases};

}  // namespace llmtrain::convert
