model_config = ModelConfig(
    gradient_checkpointing=True  # Recompute activations during backward pass
)
