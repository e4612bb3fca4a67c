training_config = TrainingConfig(
    world_size=4,                    # Number of GPUs
    distributed_backend="nccl",      # Communication backend
    batch_size=8,                    # Per-device batch size
    gradient_accumulation_steps=2    # Total effective batch size: 4*8*2=64
)
