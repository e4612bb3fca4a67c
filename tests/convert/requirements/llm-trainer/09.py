data_config = DataConfig(
    pack_sequences=True,
    packing_strategy="greedy",  # or "first_fit"
    max_length=1024
)
