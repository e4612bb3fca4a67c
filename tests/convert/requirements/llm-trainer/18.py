training_config = TrainingConfig(
    save_steps=2000,        # Save every 2000 steps
    save_total_limit=3,     # Keep only 3 most recent checkpoints
    checkpoint_dir="./checkpoints"
)
