// LLaMA-Factory's arguments, beside those of Transformers.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_stage_loss(Draft& draft, const SettingValue& value) {
  const std::string& loss = value.text;
  return draft.set_text("dpo.loss", loss == "kto_pair" ? "kto" : loss);
}

constexpr Entry entries[] = {
    derived("stage", "task", "run.task", "pt=pretrain sft rm=reward ppo dpo kto"),
    derived("finetuning_type", "finetuning", "run.finetuning", "full lora qlora freeze"),
    derived("model_name_or_path", "model", "model.path"),
    mapped("adapter_name_or_path", "lora.path"),
    derived("train_from_scratch", "new_weights", "model.d_model",
            "true false=", "give the shape: d_model, n_layers, n_heads"),
    no_effect("model_max_length block_size", "cutoff_len is the length"),
    derived("compute_dtype infer_dtype torch_dtype", "dtype", "precision.compute", dtypes),
    derived("pure_bf16", "bf16", "precision.compute", yes_no, "master weights stay fp32"),
    mapped("disable_gradient_checkpointing", "memory.recompute", "true=none false=block"),
    no_effect("adapter_folder cache_dir use_fast_tokenizer split_special_tokens model_revision low_cpu_mem_usage "
              "flash_attn use_unsloth use_unsloth_gc enable_liger_kernel use_reentrant_gc upcast_layernorm "
              "upcast_lmhead_output infer_backend offload_folder use_kv_cache use_v1_kernels print_param_status "
              "trust_remote_code device_map block_diag_attn quantization_device_map",
              "kernels are fused already, norms and the loss are fp32, and folders of files are read as they are"),
    no_effect("hf_hub_token ms_hub_token om_hub_token export_hub_model_id", "nothing is sent over the network"),
    mapped("add_tokens add_special_tokens", "data.add_tokens"),
    no_effect("resize_vocab new_special_tokens_config init_special_tokens",
              "data.add_tokens adds rows, which begin as the mean of the others"),
    unsupported("rope_scaling", "rope_scaling in the config.json of model.path; model.rope_scaling is for new models"),
    unsupported("shift_attn mixture_of_depths", "model.sliding_window limits attention"),
    mapped("moe_aux_loss_coef", "objective.router_aux"),
    mapped("quantization_bit", "quantization.bits", "4 8"),
    mapped("quantization_type", "quantization.type", "nf4 fp4"),
    mapped("double_quantization", "quantization.double"),
    no_effect("quantization_method", "bitsandbytes' formats"),
    no_effect("image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels "
              "video_min_pixels video_fps video_maxlen use_audio_in_video audio_sampling_rate media_dir "
              "freeze_vision_tower freeze_multi_modal_projector",
              "models read text"),
    unsupported("freeze_language_model", "run.finetuning = freeze"),
    no_effect("export_dir export_size export_device export_quantization_dataset export_quantization_nsamples "
              "export_quantization_maxlen export_legacy_format",
              "llmtool merge and llmtool export have options of their own"),
    unsupported("export_quantization_bit", "llmtool quantize --model DIR --bits 4"),
    no_effect(
        "vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction "
        "sglang_tp_size sglang_config sglang_lora_backend",
        "the program generates by itself"),
    unsupported("use_kt kt_weight_path kt_expert_checkpoint_path kt_use_lora_experts kt_lora_expert_num "
                "kt_lora_expert_intermediate_size use_mca use_hyper_parallel hyper_parallel_args",
                "mpirun -n RANKS llmtrain DECK"),
    mapped("template", "chat.template",
           "llama2 llama3 chatml qwen qwen3 mistral alpaca zephyr gemma gemma2=gemma phi=phi3 phi3 vicuna "
           "empty=none qwen3_nothink=chatml",
           "the model folder's own template is auto; others are Jinja files"),
    derived("dataset", "dataset", "data.train", {}, "names of dataset_info.json become files of rows"),
    derived("eval_dataset", "validation_data", "data.validation"),
    no_effect("dataset_dir streaming buffer_size overwrite_cache preprocessing_batch_size preprocessing_num_workers "
              "tokenized_path data_shared_file_system ignore_pad_token_for_loss eval_num_beams eval_on_each_dataset",
              "data.train names the files; text is tokenized once into data.cache"),
    mapped("cutoff_len", "batch.sequence_length"),
    ruled("train_on_prompt", train_on_prompt, "chat.train_on"),
    mapped("mask_history", "chat.train_on", "true=last false="),
    mapped("mix_strategy", "data.train",
           "concat= interleave_under= interleave_over=", "weights: FILE:WEIGHT, FILE:WEIGHT"),
    unsupported("interleave_probs", "weights in data.train: FILE:WEIGHT, FILE:WEIGHT"),
    unsupported("max_samples", "llmtool split, or a shorter file"),
    mapped("val_size", "data.validation_fraction", {}, "a fraction; a number of rows is not supported"),
    derived("packing", "packing", "data.packing", yes_no, "attention never crosses rows, as with neat_packing"),
    mapped("neat_packing", "data.packing", "true=best_fit false="),
    no_effect("tool_format preserve_thinking", "the chat template decides: chat.template"),
    mapped("default_system", "chat.system"),
    mapped("enable_thinking", "chat.enable_thinking", yes_no),
    mapped("freeze_trainable_layers", "freeze.trainable_layers"),
    mapped("freeze_trainable_modules", "freeze.trainable_modules"),
    mapped("freeze_extra_modules", "freeze.extra_modules"),
    mapped("use_llama_pro", "freeze.llama_pro"),
    mapped("additional_target", "lora.modules_to_save"),
    mapped("lora_rank", "lora.r"),
    mapped("lora_alpha", "lora.alpha"),
    mapped("lora_dropout", "lora.dropout"),
    ruled("lora_target", set_target_modules, "lora.target_modules"),
    mapped("loraplus_lr_ratio", "lora.learning_rate_ratio"),
    no_effect("loraplus_lr_embedding pissa_iter pissa_convert create_new_adapter",
              "lora.path continues an adapter; embeddings are trained whole"),
    mapped("use_rslora", "lora.rslora"),
    mapped("use_dora", "lora.dora"),
    ruled("pissa_init", set_pissa, "lora.init"),
    unsupported("oft_rank", "run.finetuning = lora"),
    no_effect("module_dropout oft_block_size oft_target", "belongs to OFT"),
    mapped("pref_beta", "dpo.beta"),
    unsupported("pref_ftx pref_bco_weight", "dpo.loss = sigmoid, sft with dpo.loss_weights"),
    ruled("pref_loss", set_stage_loss, "dpo.loss").for_tasks("dpo"),
    no_effect("pref_loss", "kto has one loss").for_tasks("kto"),
    mapped("dpo_label_smoothing", "dpo.label_smoothing"),
    mapped("kto_chosen_weight", "dpo.desirable_weight"),
    mapped("kto_rejected_weight", "dpo.undesirable_weight"),
    mapped("simpo_gamma", "dpo.simpo_gamma"),
    unsupported("ld_alpha", "dpo.loss = sigmoid_norm"),
    mapped("ppo_epochs", "ppo.epochs"),
    no_effect("ppo_buffer_size", "a rollout has batch.global completions"),
    unsupported("ppo_score_norm", "ppo.score_scale and ppo.score_clip"),
    mapped("ppo_target", "ppo.adaptive_kl_target"),
    mapped("ppo_whiten_rewards", "ppo.whiten_rewards"),
    mapped("ref_model", "dpo.reference"),
    unsupported("ref_model_adapters reward_model_adapters", "llmtool merge, and the folder of the merged model"),
    no_effect("ref_model_quantization_bit reward_model_quantization_bit", "[quantization] holds for them, too"),
    mapped("reward_model", "ppo.reward_model"),
    no_effect("reward_model_type", "a folder of run.task = reward"),
    unsupported("use_galore use_apollo use_badam use_adam_mini", "optimizer.name = adamw_8bit or adafactor"),
    no_effect("galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise "
              "apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type "
              "apollo_scale_type apollo_layerwise apollo_scale_front badam_mode badam_start_block badam_switch_mode "
              "badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose",
              "belongs to an unsupported optimizer"),
    unsupported("use_swanlab", "log.sinks = tensorboard"),
    no_effect("swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir "
              "swanlab_lark_webhook_url swanlab_lark_secret",
              "nothing is sent over the network"),
    mapped("use_muon", "optimizer.name", "true=muon false="),
    mapped("use_dft_loss", "run.task", "true=dft false=").for_tasks("sft"),
    no_effect("use_dft_loss", "belongs to sft"),
    unsupported("use_asft_loss use_eaft_loss", "the cross-entropy, with the terms of [objective]"),
    no_effect("asft_alpha eaft_alpha", "belongs to an unsupported loss"),
    no_effect("compute_accuracy", "evaluations have token_accuracy"),
    mapped("disable_shuffling", "data.shuffle", "true=false false=true"),
    mapped("early_stopping_steps", "evaluation.early_stopping_patience"),
    no_effect("plot_loss", "llmtool report draws the curves"),
    no_effect("include_effective_tokens_per_second", "the log has tokens per second"),
    no_effect("do_sample temperature top_p top_k num_beams max_new_tokens repetition_penalty length_penalty "
              "skip_special_tokens predict_with_generate",
              "generation has its own deck: [generate]"),
    mapped("max_length", "rollout.max_new_tokens").for_tasks("ppo"),
    no_effect("max_length", "cutoff_len is the length in training"),
    no_effect(
        "ray_num_workers ray_init_kwargs ray_run_name resources_per_worker placement_strategy master_addr master_port",
        "mpirun or srun starts the ranks"),
    no_effect("profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_repeat profiler_record_shapes "
              "profiler_profile_memory profiler_with_stack profile_modules",
              "log.profile = N profiles N steps"),
    mapped("enable_torch_profiler", "log.profile", "true=3 false="),
    no_effect("profiler_active_steps", "log.profile"),
    unsupported("fp8", "precision.compute = bf16"),
    no_effect("fp8_backend fp8_enable_fsdp_float8_all_gather", "belongs to fp8"),
    mapped("overwrite_output_dir", "run.overwrite"),
    // version 1
    derived("model", "model", "model.path"),
    derived("train_dataset", "dataset", "data.train", {}, "files of rows"),
    derived("micro_batch_size", "micro", "batch.micro, batch.global"),
    derived("global_batch_size", "global", "batch.global"),
    derived("peft_config.name", "finetuning", "run.finetuning", "lora freeze"),
    mapped("peft_config.freeze_trainable_layers", "freeze.trainable_layers"),
    mapped("peft_config.freeze_trainable_modules", "freeze.trainable_modules"),
    mapped("peft_config.freeze_extra_modules", "freeze.extra_modules"),
    mapped("peft_config.adapter_name_or_path", "lora.path"),
    mapped("quant_config.quantization_bit", "quantization.bits", "4 8"),
    derived("optim_config.name", "optimizer", "optimizer.name", optimizers),
    mapped("optim_config.wd", "optimizer.weight_decay"),
    mapped("optim_config.momentum", "optimizer.momentum"),
    ruled("optim_config.adamw_betas", set_betas, "optimizer.beta1, optimizer.beta2"),
    mapped("optim_config.adamw_eps", "optimizer.epsilon"),
    no_effect("model_class sample_backend kernel_config init_config dist_config quant_config quant_config.name "
              "optim_config.nesterov optim_config.ns_steps peft_config.export_dir peft_config.export_size "
              "peft_config.infer_dtype batching_strategy dist_config.name dist_config.dcp_path",
              "kernels are fused, ranks share single tensors, and Muon is that of its paper"),
    unsupported("cp_size cp_mode dist_config.ep_size dist_config.ep_dispatcher", "parallel.zero", "1"),
    ruled("dist_config.config_file", read_deepspeed_file, "parallel.zero", "the file is converted, too"),
};

constexpr Default defaults[] = {
    {"stage", "sft"},          {"finetuning_type", "lora"},     {"cutoff_len", "2048"},
    {"learning_rate", "5e-5"}, {"lr_scheduler_type", "linear"}, {"per_device_train_batch_size", "8"},
    {"num_train_epochs", "3"}, {"weight_decay", "0"},           {"disable_gradient_checkpointing", "false"},
    {"logging_steps", "500"},  {"save_steps", "500"},           {"eval_strategy", "no"},
    {"bf16", "false"},         {"ppo_target", "6", "ppo"},
};

constexpr Hint hints[] = {{"pref_loss", "dpo"}, {"pref_beta", "dpo"}, {"cutoff_len", "sft"},
                          {"dataset", "sft"},   {"template", "sft"},  {"finetuning_type", "sft"}};

constexpr Include includes[] = {{"peft_config.", &peft}, {"", &transformers}};

}  // namespace

const System llama_factory{"llamafactory", "LLaMA-Factory 0.9.5", entries, defaults, hints, includes};

}  // namespace llmtrain::convert
