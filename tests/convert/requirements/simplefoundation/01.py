# Initialize with configuration
from training.trainers.model_trainer import ModelTrainer, TrainingConfig

# Load configuration
config = TrainingConfig(
    model_name_or_path="mistralai/Mistral-7B-v0.1",
    use_lora=True,
    load_in_4bit=True,
    num_train_epochs=3
)

# Initialize trainer
trainer = ModelTrainer(config)
