training_config = TrainingConfig(
    report_to=["tensorboard"],
    logging_steps=100
)
