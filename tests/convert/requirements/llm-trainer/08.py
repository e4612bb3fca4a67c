training_config = TrainingConfig(
    batch_size=4,                   # Small batch per step
    gradient_accumulation_steps=16  # Accumulate 16 steps = effective batch size 64
)
