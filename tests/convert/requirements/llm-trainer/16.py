training_config = TrainingConfig(
    report_to=["wandb"],
    logging_steps=100
)
