from llm_trainer.config import TrainingConfig

training_config = TrainingConfig(
    batch_size=8,                    # Batch size per device
    learning_rate=1e-4,              # Learning rate
    weight_decay=0.01,               # Weight decay
    num_epochs=3,                    # Number of training epochs
    lr_scheduler="cosine",           # Learning rate scheduler
    warmup_steps=2000,               # Warmup steps
    optimizer="adamw",               # Optimizer type
    gradient_accumulation_steps=8,   # Gradient accumulation
    use_amp=True,                    # Mixed precision training
    max_grad_norm=1.0,               # Gradient clipping
    save_steps=2000,                 # Checkpoint saving frequency
    eval_steps=1000,                 # Evaluation frequency
    logging_steps=100,               # Logging frequency
    checkpoint_dir="./checkpoints",  # Checkpoint directory
    report_to=["tensorboard"]        # Monitoring tools
)
