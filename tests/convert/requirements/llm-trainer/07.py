training_config = TrainingConfig(
    use_amp=True,
    amp_dtype="float16"  # or "bfloat16"
)
