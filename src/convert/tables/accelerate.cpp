// The launch configuration of Accelerate.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_launch(Draft& draft, const SettingValue&) {
  draft.remark(
      "Accelerate's file describes how a job is launched: convert the settings of the training, too, and add these.");
  return "";
}

/// The stage of ZeRO by what FSDP shards, in names, numbers (version 1) or a boolean (version 2).
constexpr std::string_view shards =
    "FULL_SHARD=3 1=3 HYBRID_SHARD=3 4=3 true=3 SHARD_GRAD_OP=2 2=2 HYBRID_SHARD_ZERO2=2 5=2 false=2 NO_SHARD=0 3=0";

constexpr Entry entries[] = {
    ruled("distributed_type", set_launch, "parallel.zero", "mpirun or srun starts the ranks"),
    derived("num_processes", "world", "batch.global", {}, "the number of ranks: mpirun -n"),
    derived("mixed_precision", "dtype", "precision.compute", "no=fp32 bf16 fp16", "bf16 is near fp8"),
    derived("deepspeed_config.zero_stage", "zero", "parallel.zero", "0 1 2 3"),
    ruled("deepspeed_config.deepspeed_config_file", read_deepspeed_file, "parallel.zero", "the file is converted, too"),
    mapped("deepspeed_config.offload_optimizer_device", "parallel.offload_optimizer", "none cpu nvme"),
    derived("deepspeed_config.offload_param_device", "offload_parameters", "parallel.offload_parameters",
            "none cpu nvme"),
    mapped("deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path",
           "parallel.offload_path"),
    derived("gradient_accumulation_steps deepspeed_config.gradient_accumulation_steps", "accumulation", "batch.global"),
    mapped("gradient_clipping deepspeed_config.gradient_clipping", "optimizer.max_grad_norm"),
    derived("fsdp_config.fsdp_sharding_strategy fsdp_config.fsdp_reshard_after_forward", "zero", "parallel.zero",
            shards),
    mapped("fsdp_config.fsdp_offload_params", "parallel.offload_optimizer", "true=cpu false=none"),
    mapped("fsdp_config.fsdp_activation_checkpointing", "memory.recompute", recompute_if),
    no_effect("fsdp_config deepspeed_config", "ranks share single tensors, which are gathered a layer at a time"),
    no_effect("deepspeed_config.deepspeed_multinode_launcher deepspeed_config.deepspeed_hostfile "
              "deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model "
              "deepspeed_config.deepspeed_moe_layer_cls_names deepspeed_config.deepspeed_inclusion_filter "
              "deepspeed_config.deepspeed_exclusion_filter deepspeed_config.seq_parallel_communication_data_type "
              "fsdp_config.fsdp_version fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_backward_prefetch "
              "fsdp_config.fsdp_backward_prefetch_policy fsdp_config.fsdp_cpu_ram_efficient_loading "
              "fsdp_config.fsdp_forward_prefetch fsdp_config.fsdp_ignored_modules fsdp_config.fsdp_min_num_params "
              "fsdp_config.fsdp_state_dict_type fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_use_orig_params "
              "fsdp_config.fsdp_transformer_layer_cls_to_wrap fsdp_config.min_num_params",
              "layers are gathered one at a time, and any number of ranks reads a checkpoint"),
    no_effect(
        "compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_process_ip "
        "main_process_port main_training_function num_machines rdzv_backend rdzv_conf same_network use_cpu gpu_ids "
        "tpu_env tpu_name tpu_zone tpu_use_cluster tpu_use_sudo tpu_vm commands command_file dynamo_backend "
        "dynamo_config ipex_config mpirun_config num_cpu_threads_per_process",
        "mpirun or srun starts the ranks, and the build decides about the device"),
    unsupported("fp8_config", "precision.compute = bf16"),
    unsupported("megatron_lm_config parallelism_config", "parallel.zero"),
    no_effect("ec2_instance_type iam_role_name image_uri profile py_version pytorch_version region "
              "transformers_version base_job_name additional_args sagemaker_inputs_file sagemaker_metrics_file",
              "belongs to SageMaker"),
};

}  // namespace

const System accelerate{"accelerate", "Accelerate 1.15 (launch configuration)", entries};

}  // namespace llmtrain::convert
