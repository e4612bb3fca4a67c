from src.training.pipeline import TrainingPipeline
from src.core.config_handler import ConfigManager

# Initialize with custom configuration
config_manager = ConfigManager(config_path=".config")
pipeline = TrainingPipeline(
    model_name="llama",
    model_version="3.3-7b",
    config_manager=config_manager
)

# Start training with monitoring
pipeline.train(
    train_dataset=train_data,
    val_dataset=val_data,
    monitor_performance=True
)
