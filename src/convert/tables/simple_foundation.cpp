// SimpleFoundation's TrainingConfig and its JSON.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

constexpr Entry entries[] = {
    derived("model_name_or_path", "model", "model.path"),
    derived("use_lora", "finetuning", "run.finetuning", lora_if),
    mapped("load_in_4bit", "quantization.bits", "true=4 false="),
    mapped("load_in_8bit", "quantization.bits", "true=8 false="),
    mapped("lora_r", "lora.r"),
    mapped("lora_alpha", "lora.alpha"),
    mapped("lora_dropout", "lora.dropout"),
    ruled("lora_target_modules target_modules", set_target_modules, "lora.target_modules"),
    mapped("max_seq_length", "batch.sequence_length"),
    derived("train_batch_size", "micro", "batch.micro, batch.global"),
    no_effect("eval_batch_size", "evaluations use batch.micro"),
    derived("train_file train.train_file", "dataset", "data.train"),
    derived("eval_file train.eval_file validation_file", "validation_data", "data.validation"),
    no_effect("use_flash_attention flash_attention", "attention is always fused"),
    derived("use_wandb", "sinks", "log.sinks", "true=wandb false="),
    mapped("wandb_project", "wandb.project"),
    derived("wandb_name", "run_name", "wandb.name"),
    mapped("early_stopping_patience", "evaluation.early_stopping_patience"),
    mapped("early_stopping_threshold", "evaluation.early_stopping_threshold"),
    ruled("deepspeed_config", read_deepspeed_file, "parallel.zero", "the file is converted, too"),
};

constexpr Hint hints[] = {
    {"learning_rate", "sft"}, {"fp16", "sft"},      {"early_stopping_patience", "sft"}, {"model_name_or_path", "sft"},
    {"LoraConfig", "sft"},    {"use_wandb", "sft"}, {"train.train_file", "sft"},        {"train_batch_size", "sft"}};
constexpr Include includes[] = {{"", &transformers}, {"LoraConfig.", &peft}};
constexpr std::string_view prefixes[] = {"TrainingConfig.", "ModelTrainer."};

}  // namespace

const System simple_foundation{"simplefoundation", "SimpleFoundation", entries, {}, hints, includes, prefixes};

}  // namespace llmtrain::convert
