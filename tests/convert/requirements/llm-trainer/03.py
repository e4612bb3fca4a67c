# Small model configuration
model_config = ModelConfig(
    d_model=256,
    n_heads=4,
    n_layers=4,
    d_ff=1024,
    max_seq_len=512
)

training_config = TrainingConfig(
    batch_size=16,
    learning_rate=5e-4,
    num_epochs=3,
    gradient_accumulation_steps=2
)

data_config = DataConfig(
    dataset_name="wikitext",
    dataset_config="wikitext-2-raw-v1",  # Smaller dataset
    max_length=512
)
