// nanoGPT's train.py and config/*.py.
#include <fmt/format.h>

#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

std::string set_start(Draft& draft, const SettingValue& value) {
  if (value.text.starts_with("gpt2")) {
    draft.set_fact("model", "openai-community/" + value.text);
    return "";
  }
  if (value.text != "scratch" && value.text != "resume") return value.print() + ": must be scratch, resume or gpt2";
  draft.set_fact("new_weights", "true");
  return "";
}

/// data/NAME has train.bin and val.bin.
std::string set_dataset(Draft& draft, const SettingValue& value) {
  if (draft.is_default() && draft.needs().contains("data.train")) return "";
  const auto import = [&](std::string_view key, std::string_view bin, std::string_view output) {
    draft.need(key, fmt::format("{0}, after llmtool import data/{1}/{2} --format nanogpt --output {0}", output,
                                value.text, bin));
  };
  import("data.train", "train.bin", "train.h5");
  import("data.validation", "val.bin", "val.h5");
  return draft.set_text("data.cross_document_attention", "true");
}

constexpr Entry entries[] = {
    derived("out_dir", "output_dir", "run.output, run.name"),
    mapped("eval_interval", "evaluation.every_steps, checkpoint.every_steps", {}, "nanoGPT saves when it evaluates"),
    mapped("log_interval", "log.every_steps"),
    mapped("eval_iters", "evaluation.batches", {}, "batches of batch.global sequences; nanoGPT's have batch_size"),
    mapped("eval_only", "run.task", "true=evaluate false="),
    no_effect("always_save_checkpoint", "checkpoint.keep, and the best one is kept"),
    ruled("init_from", set_start, "model.path", "resume: the same command resumes"),
    derived("wandb_log", "sinks", "log.sinks", "true=wandb false="),
    mapped("wandb_project", "wandb.project"),
    derived("wandb_run_name", "run_name", "wandb.name"),
    ruled("dataset", set_dataset, "data.train, data.validation, data.cross_document_attention",
          "llmtool import data/NAME/train.bin --format nanogpt --output train.h5, and val.bin"),
    mapped("gradient_accumulation_steps", "batch.gradient_accumulation_steps", {}, "of the whole job, in both"),
    mapped("batch_size", "batch.micro"),
    mapped("block_size", "batch.sequence_length"),
    mapped("n_layer", "model.n_layers"),
    mapped("n_head", "model.n_heads"),
    mapped("n_embd", "model.d_model"),
    mapped("dropout", "model.dropout, model.attention_dropout"),
    mapped("bias", "model.bias"),
    mapped("vocab_size meta_vocab_size", "model.vocab_size"),
    mapped("learning_rate", "schedule.learning_rate"),
    mapped("max_iters", "run.max_steps"),
    mapped("weight_decay", "optimizer.weight_decay"),
    mapped("beta1", "optimizer.beta1"),
    mapped("beta2", "optimizer.beta2"),
    mapped("grad_clip", "optimizer.max_grad_norm"),
    mapped("decay_lr", "schedule.name", "true=cosine_with_min_lr false=constant"),
    derived("warmup_iters", "warmup_steps", "schedule.warmup_steps", {},
            "the first step's rate is 0 here, 1 / (warmup_iters + 1) there"),
    derived("lr_decay_iters", "decay_steps", "run.max_steps", {}, "the decay ends with run.max_steps"),
    mapped("min_lr", "schedule.min_learning_rate"),
    no_effect("backend device compile master_process seed_offset ddp", "the build, MPI and the launcher decide"),
    derived("dtype", "dtype", "precision.compute", dtypes),
    mapped("seed", "run.seed"),
};

constexpr Default defaults[] = {
    {"block_size", "1024"},     {"n_layer", "12"},
    {"n_head", "12"},           {"n_embd", "768"},
    {"batch_size", "12"},       {"dropout", "0"},
    {"bias", "false"},          {"gradient_accumulation_steps", "40"},
    {"learning_rate", "6e-4"},  {"max_iters", "600000"},
    {"beta2", "0.95"},          {"weight_decay", "0.1"},
    {"grad_clip", "1"},         {"decay_lr", "true"},
    {"min_lr", "6e-5"},         {"warmup_iters", "2000"},
    {"log_interval", "1"},      {"eval_iters", "200"},
    {"out_dir", "out"},         {"eval_interval", "2000"},
    {"dataset", "openwebtext"}, {"lr_decay_iters", "600000"},
};

}  // namespace

const System nanogpt{"nanogpt", "nanoGPT", entries, defaults};

}  // namespace llmtrain::convert
