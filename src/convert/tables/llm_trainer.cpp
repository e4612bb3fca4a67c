// LLM Trainer's ModelConfig, TrainingConfig and DataConfig.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_tokenizer_size(Draft& draft, const SettingValue& value) {
  const std::string wrong = draft.set_text("data.tokenizer", "bpe");
  return wrong.empty() ? draft.set("data.vocab_size", value) : wrong;
}

/// A share of the rows, or the name of a split of a data set.
std::string set_validation_split(Draft& draft, const SettingValue& value) {
  if (value.number()) return draft.set("data.validation_fraction", value);
  draft.need("data.validation", "files with the rows of the split " + value.text);
  return "";
}

constexpr Entry entries[] = {
    ruled("vocab_size", set_tokenizer_size, "data.tokenizer, data.vocab_size", "a tokenizer is trained on data.train"),
    mapped("d_model", "model.d_model"),
    mapped("n_heads", "model.n_heads"),
    mapped("n_layers", "model.n_layers"),
    mapped("d_ff", "model.d_ff"),
    mapped("max_seq_len", "model.max_seq_len"),
    mapped("dropout", "model.dropout"),
    mapped("attention_dropout", "model.attention_dropout"),
    mapped("activation", "model.activation", "gelu gelu_new=gelu_tanh gelu_tanh relu silu swish=silu swiglu geglu"),
    mapped("pre_norm", "model.pre_norm"),
    mapped("tie_word_embeddings", "model.tie_embeddings"),
    mapped("gradient_checkpointing", "memory.recompute", recompute_if),
    derived("batch_size", "micro", "batch.micro, batch.global"),
    no_effect("eval_batch_size", "evaluations use batch.micro"),
    derived("num_epochs", "epochs", "run.epochs"),
    mapped("lr_scheduler", "schedule.name", schedulers, "cosine or linear"),
    mapped("optimizer", "optimizer.name", optimizers, "adamw"),
    derived("use_amp", "amp", "precision.compute", yes_no, "fp16 unless amp_dtype says bf16"),
    derived("amp_dtype", "dtype", "precision.compute", dtypes),
    derived("checkpoint_dir", "output_dir", "run.output, run.name"),
    no_effect("compile_model", "kernels are compiled already"),
    derived("world_size", "world", "batch.global"),
    no_effect("distributed_backend", "MPI, with NCCL between GPUs"),
    ruled("use_deepspeed", use_deepspeed, "parallel.zero", "ZeRO 2 unless deepspeed_config sets another stage"),
    ruled("deepspeed_config", read_deepspeed_file, "parallel.zero", "the file is converted, too"),
    derived("dataset_name dataset_path train_file", "dataset", "data.train", {},
            "files; the hub's data sets are not downloaded"),
    derived("validation_file", "validation_data", "data.validation"),
    no_effect("dataset_config dataset_split preprocessing_num_workers cache_dir streaming",
              "data.train and data.validation name files, which are read in parallel"),
    ruled("validation_split", set_validation_split, "data.validation, data.validation_fraction",
          "a fraction, or the name of a split"),
    mapped("text_column", "data.text_column"),
    mapped("max_length", "batch.sequence_length"),
    mapped("min_length", "data.min_length"),
    mapped("packing_strategy", "data.packing", "greedy first_fit"),
    mapped("pack_sequences", "data.packing", "true=greedy false=none"),
};

constexpr Include includes[] = {{"", &transformers}};
constexpr std::string_view prefixes[] = {"ModelConfig.", "TrainingConfig.", "DataConfig.",
                                         "model.",       "training.",       "data."};

}  // namespace

const System llm_trainer{"llm-trainer", "LLM Trainer", entries, {}, {}, includes, prefixes};

}  // namespace llmtrain::convert
