# Configure curriculum learning
config.training.curriculum = {
    "enabled": True,
    "strategy": "length_based",  # length_based, difficulty_based
    "start_length": 128,
    "end_length": 2048,
    "steps": 1000
}
