model_config = ModelConfig(
    d_model=1024,
    n_heads=16,
    n_layers=24,
    d_ff=4096,
    max_seq_len=2048,
    gradient_checkpointing=True
)

training_config = TrainingConfig(
    batch_size=4,
    gradient_accumulation_steps=16,  # Effective batch size: 64
    use_amp=True,
    use_deepspeed=True,  # Enable DeepSpeed for large models
    num_epochs=1
)
