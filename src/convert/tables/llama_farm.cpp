// LlamaFarm's strategies: the sections of a fine_tuner, for PyTorch or LLaMA-Factory.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

constexpr Entry entries[] = {
    no_effect("type", "pytorch or llamafactory: the settings below say the same"),
    derived("base_model.huggingface_id base_model.model_name", "model", "model.path"),
    no_effect("base_model.cache_dir base_model.device_map base_model.trust_remote_code base_model.use_auth_token",
              "a folder of files is read, without the network and code of others"),
    derived("base_model.torch_dtype optimization.mps.torch_dtype optimization.cpu.torch_dtype "
            "optimization.cuda.torch_dtype",
            "dtype", "precision.compute", dtypes),
    mapped("base_model.load_in_8bit method.quantization.load_in_8bit", "quantization.bits", "true=8 false="),
    mapped("base_model.load_in_4bit method.quantization.load_in_4bit", "quantization.bits", "true=4 false="),
    derived("method.type", "finetuning", "run.finetuning", "lora qlora full full_finetuning=full freeze"),
    mapped("method.r", "lora.r"),
    mapped("method.alpha method.lora_alpha", "lora.alpha"),
    mapped("method.dropout method.lora_dropout", "lora.dropout"),
    mapped("method.target_modules", "lora.target_modules"),
    mapped("method.bias", "lora.bias", "none all lora_only"),
    mapped("method.modules_to_save", "lora.modules_to_save"),
    mapped("method.layers_to_transform", "lora.layers_to_transform"),
    mapped("method.layers_pattern", "lora.layers_pattern"),
    no_effect("method.quantization.bnb_4bit_compute_dtype", "precision.compute"),
    mapped("method.quantization.bnb_4bit_quant_type", "quantization.type", "nf4 fp4"),
    mapped("method.quantization.bnb_4bit_use_double_quant", "quantization.double"),
    derived("training.batch_size training.per_device_train_batch_size optimization.cuda.per_device_batch_size "
            "optimization.mps.per_device_batch_size optimization.cpu.per_device_batch_size",
            "micro", "batch.micro, batch.global"),
    derived("optimization.cuda.gradient_accumulation_steps optimization.mps.gradient_accumulation_steps "
            "optimization.cpu.gradient_accumulation_steps",
            "accumulation", "batch.global"),
    derived("training.num_epochs", "epochs", "run.epochs"),
    mapped("training.optim optimization.cuda.optim", "optimizer.name", optimizers),
    derived("training.optimizer", "optimizer", "optimizer.name", optimizers, "unless optim is given"),
    no_effect("training.compute_metrics",
              "the loss, perplexity and token accuracy are always measured; evaluation.metrics names others"),
    no_effect("training.early_stopping", "evaluation.early_stopping_patience switches it on"),
    mapped("training.early_stopping_patience", "evaluation.early_stopping_patience"),
    mapped("training.early_stopping_threshold", "evaluation.early_stopping_threshold"),
    no_effect("training.use_flash_attention optimization.cuda.use_flash_attention", "attention is always fused"),
    derived("optimization.cuda.use_bf16", "bf16", "precision.compute", yes_no),
    mapped("optimization.cuda.gradient_checkpointing optimization.mps.gradient_checkpointing "
           "optimization.cpu.gradient_checkpointing",
           "memory.recompute", recompute_if),
    mapped("optimization.mps.use_cpu_offload optimization.cuda.use_cpu_offload", "parallel.offload_optimizer",
           "true=cpu false="),
    no_effect("optimization.cpu.use_ipex", "products go through oneDNN on processors"),
    mapped("training.max_length training.max_seq_length dataset.max_length", "batch.sequence_length"),
    derived("dataset dataset.path data.train_file", "dataset", "data.train"),
};

constexpr Hint hints[] = {{"method.type", "sft"},         {"base_model.huggingface_id", "sft"},
                          {"training.batch_size", "sft"}, {"training.eval_steps", "sft"},
                          {"finetuning_type", "sft"},     {"stage", "sft"}};
constexpr Include includes[] = {{"training.", &transformers}, {"", &llama_factory}};
constexpr std::string_view prefixes[] = {"components.", "fine_tuner.", "config."};

}  // namespace

const System llama_farm{"llamafarm", "LlamaFarm", entries, {}, hints, includes, prefixes};

}  // namespace llmtrain::convert
