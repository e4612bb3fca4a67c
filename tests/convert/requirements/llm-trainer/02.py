from llm_trainer.config import DataConfig

data_config = DataConfig(
    dataset_name="wikitext",
    dataset_config="wikitext-103-raw-v1",
    dataset_split="train",
    validation_split="validation",
    text_column="text",
    max_length=1024,
    min_length=10,
    pack_sequences=True,             # Pack sequences for efficiency
    preprocessing_num_workers=8      # Parallel preprocessing
)
