# Enable memory optimizations
config.training.gradient_checkpointing = True
config.training.fp16 = True
config.training.dataloader_pin_memory = True
config.training.dataloader_num_workers = 4

# DeepSpeed integration
config.training.deepspeed = {
    "zero_stage": 2,
    "offload_optimizer": True,
    "offload_param": True
}
