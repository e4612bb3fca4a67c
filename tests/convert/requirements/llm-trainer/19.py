training_config = TrainingConfig(
    resume_from_checkpoint="./checkpoints/checkpoint-10000.pt"
)
