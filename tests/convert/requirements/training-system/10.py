# Configure distributed training
config.training.distributed = True
config.training.num_gpus = 4
config.training.gradient_accumulation_steps = 8

# Initialize with Accelerate
from accelerate import Accelerator

accelerator = Accelerator(
    gradient_accumulation_steps=config.training.gradient_accumulation_steps,
    mixed_precision="fp16",
    log_with="wandb"
)

# Training orchestrator will automatically use distributed setup
trainer = TrainingOrchestrator(config, accelerator=accelerator)
