training_config = TrainingConfig(
    use_deepspeed=True,
    deepspeed_config="deepspeed_config.json"
)
