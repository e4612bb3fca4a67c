# Train the model
final_checkpoint = trainer.train(
    train_file="data/formatted/combined_formatted.json",
    eval_file="data/formatted/validation.json"  # Optional
)
