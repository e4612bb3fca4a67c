// DeepSpeed's JSON.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

/// Warm-ups follow the logarithm of the step unless warmup_type is linear (deepspeed/runtime/lr_schedules.py).
std::string set_scheduler(Draft& draft, const SettingValue& value) {
  std::string name;
  if (value.text == "WarmupLR") name = "constant_with_warmup";
  if (value.text == "WarmupDecayLR") name = "linear";
  if (value.text == "WarmupCosineLR") name = "cosine";
  if (name.empty()) return value.print() + " has no counterpart here (known: WarmupLR, WarmupDecayLR, WarmupCosineLR)";
  draft.set_fact("deepspeed_scheduler", value.text);
  return draft.set_text("schedule.name", name);
}

constexpr Entry entries[] = {
    derived("train_batch_size", "global", "batch.global"),
    derived("train_micro_batch_size_per_gpu", "micro", "batch.micro, batch.global"),
    derived("gradient_accumulation_steps", "accumulation", "batch.global"),
    mapped("optimizer.type", "optimizer.name",
           "Adam=adamw AdamW=adamw CPUAdam=adamw FusedAdam=adamw Lion=lion SGD=sgd Muon=muon",
           "adamw is near most others"),
    mapped("optimizer.params.lr", "schedule.learning_rate"),
    ruled("optimizer.params.betas", set_betas, "optimizer.beta1, optimizer.beta2"),
    mapped("optimizer.params.eps", "optimizer.epsilon"),
    mapped("optimizer.params.weight_decay", "optimizer.weight_decay"),
    mapped("optimizer.params.adam_w_mode", "optimizer.weight_decay", "true=", "the decay is decoupled, as in AdamW"),
    mapped("optimizer.params.momentum", "optimizer.momentum"),
    no_effect("optimizer.params.torch_adam optimizer.params.bias_correction optimizer.params.freeze_step "
              "optimizer.params.cuda_aware optimizer.params.comm_backend_name optimizer.legacy_fusion",
              "AdamW is torch's, with decoupled decay and bias correction"),
    ruled("scheduler.type", set_scheduler, "schedule.name",
          "WarmupLR is constant_with_warmup, WarmupDecayLR linear, WarmupCosineLR cosine"),
    no_effect("scheduler.params.warmup_min_lr", "the warm-up begins at 0"),
    mapped("scheduler.params.warmup_max_lr", "schedule.learning_rate"),
    derived("scheduler.params.warmup_num_steps", "warmup_steps", "schedule.warmup_steps"),
    derived("scheduler.params.warmup_type", "warmup_type", "schedule.warmup_steps", "linear log",
            "linear; log, DeepSpeed's default, is not supported"),
    no_effect("scheduler.params.last_batch_iteration", "a run resumes by itself"),
    derived("scheduler.params.total_num_steps", "max_steps", "run.max_steps"),
    derived("scheduler.params.cos_min_ratio", "min_lr_rate", "schedule.min_learning_rate"),
    no_effect("scheduler.params.warmup_min_ratio", "the warm-up begins at 0"),
    derived("fp16.enabled", "fp16", "precision.compute", yes_no),
    derived("bf16.enabled bfloat16.enabled", "bf16", "precision.compute", yes_no),
    no_effect(
        "fp16.auto_cast fp16.consecutive_hysteresis fp16.fp16_master_weights_and_grads bf16.immediate_grad_update "
        "bf16.check_grad_overflow bf16.bf16_master_weights_and_grads torch_autocast communication_data_type amp",
        "master weights, moments and reductions are fp32"),
    ruled("fp16.loss_scale", set_loss_scale, "precision.loss_scale"),
    ruled("fp16.initial_scale_power", set_initial_loss_scale, "precision.initial_loss_scale", "a power of 2"),
    mapped("fp16.loss_scale_window", "precision.loss_scale_window"),
    mapped("fp16.hysteresis", "precision.loss_scale_hysteresis"),
    mapped("fp16.min_loss_scale", "precision.min_loss_scale"),
    mapped("gradient_clipping", "optimizer.max_grad_norm"),
    derived("zero_optimization.stage", "zero", "parallel.zero", "0 1 2 3"),
    mapped("zero_optimization.offload_optimizer.device", "parallel.offload_optimizer", "none cpu nvme"),
    derived("zero_optimization.offload_param.device", "offload_parameters", "parallel.offload_parameters",
            "none cpu nvme"),
    mapped("zero_optimization.cpu_offload", "parallel.offload_optimizer", "true=cpu false="),
    mapped("zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path",
           "parallel.offload_path"),
    no_effect("zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.buffer_count "
              "zero_optimization.offload_optimizer.fast_init zero_optimization.offload_optimizer.ratio "
              "zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write "
              "zero_optimization.offload_optimizer.pipeline zero_optimization.offload_optimizer.working_set "
              "zero_optimization.offload_param.pin_memory zero_optimization.offload_param.buffer_count "
              "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu "
              "zero_optimization.cpu_offload_params zero_optimization.cpu_offload_use_pin_memory",
              "buffers are planned before the first step"),
    no_effect(
        "zero_optimization.allgather_partitions zero_optimization.allgather_bucket_size zero_optimization.overlap_comm "
        "zero_optimization.reduce_scatter zero_optimization.reduce_bucket_size zero_optimization.contiguous_gradients "
        "zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
        "zero_optimization.sub_group_size zero_optimization.stage3_max_live_parameters "
        "zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_prefetch_bucket_size "
        "zero_optimization.stage3_param_persistence_threshold "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save "
        "zero_optimization.stage3_gather_fp16_weights_on_model_save "
        "zero_optimization.stage3_module_granularity_threshold "
        "zero_optimization.stage3_use_all_reduce_for_fetch_params zero_optimization.model_persistence_threshold "
        "zero_optimization.stage3_model_persistence_threshold zero_optimization.round_robin_gradients "
        "zero_optimization.ignore_unused_parameters zero_optimization.zero_hpz_partition_size "
        "zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients "
        "zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather "
        "zero_optimization.memory_efficient_linear zero_optimization.prefetch_bucket_size "
        "zero_optimization.param_persistence_threshold zero_optimization.max_live_parameters "
        "zero_optimization.max_reuse_distance zero_optimization.leaf_module "
        "zero_optimization.gather_16bit_weights_on_model_save zero_optimization.log_trace_cache_warnings "
        "zero_optimization.use_multi_rank_bucket_allreduce zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
        "layers are gathered and reduced one at a time, in a fixed order, beside the computation"),
    mapped("activation_checkpointing.partition_activations", "memory.recompute", "true=block false="),
    no_effect("activation_checkpointing.cpu_checkpointing activation_checkpointing.contiguous_memory_optimization "
              "activation_checkpointing.number_checkpoints activation_checkpointing.synchronize_checkpoint_boundary "
              "activation_checkpointing.profile",
              "memory.recompute"),
    no_effect(
        "disable_allgather prescale_gradients gradient_predivide_factor sparse_gradients gradient_accumulation_dtype "
        "seq_parallel_communication_data_type data_types.grad_accum_dtype "
        "communication_options graph_harvesting comms_logger dump_state memory_breakdown wall_clock_breakdown "
        "steps_per_print",
        "reductions are fp32 in a fixed order, and the log has times by phase"),
    derived("tensorboard.enabled", "sinks", "log.sinks", "true=tensorboard false="),
    derived("wandb.enabled", "sinks", "log.sinks", "true=wandb false="),
    mapped("wandb.project", "wandb.project"),
    mapped("wandb.team", "wandb.entity"),
    mapped("wandb.group", "wandb.group"),
    no_effect("tensorboard.output_path tensorboard.job_name csv_monitor comet monitor",
              "metrics are in the run's folder"),
    mapped("flops_profiler.enabled", "log.profile", "true=3 false="),
    no_effect(
        "flops_profiler.profile_step flops_profiler.module_depth flops_profiler.top_modules flops_profiler.detailed "
        "flops_profiler.output_file flops_profiler.recompute_fwd_factor",
        "log.profile"),
    no_effect("aio checkpoint.load_universal checkpoint.use_node_local_storage checkpoint.tag_validation "
              "checkpoint.parallel_write checkpoint nebula data_sampling compile checkpoint_engine",
              "checkpoints can be read by any number of ranks"),
    mapped("curriculum_learning.enabled", "curriculum.strategy", "true=length false="),
    mapped("curriculum_learning.min_difficulty", "curriculum.start"),
    mapped("curriculum_learning.max_difficulty", "curriculum.end"),
    mapped("curriculum_learning.schedule_type", "curriculum.shape",
           "fixed_linear=linear fixed_root=root fixed_discrete=steps"),
    mapped("curriculum_learning.schedule_config.total_curriculum_step", "curriculum.steps"),
    mapped("curriculum_learning.schedule_config.difficulty_step", "curriculum.multiple_of"),
    mapped("curriculum_learning.schedule_config.root_degree", "curriculum.root_degree"),
    no_effect("curriculum_learning.curriculum_type", "seqlen, the length"),
    unsupported("data_efficiency sparse_attention autotuning elasticity compression_training tensor_parallel pipeline "
                "progressive_layer_drop eigenvalue hybrid_engine quantize_training domino moe "
                "zero_quantized_nontrainable_weights",
                "parallel.zero, memory.recompute and llmtrain DECK --estimate"),
};

}  // namespace

const System deepspeed{"deepspeed", "DeepSpeed", entries};

}  // namespace llmtrain::convert
