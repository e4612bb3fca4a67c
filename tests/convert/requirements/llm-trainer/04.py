model_config = ModelConfig(
    d_model=768,
    n_heads=12,
    n_layers=12,
    d_ff=3072,
    max_seq_len=1024,
    gradient_checkpointing=True  # Save memory
)

training_config = TrainingConfig(
    batch_size=8,
    learning_rate=1e-4,
    gradient_accumulation_steps=8,  # Effective batch size: 64
    use_amp=True,
    num_epochs=3
)
