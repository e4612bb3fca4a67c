# Enable wandb tracking
config = TrainingConfig(
    # ...other parameters...
    use_wandb=True,
    wandb_project="SimpleFoundation",
    wandb_name="mistral-7b-v0.1-reasoning"
)
