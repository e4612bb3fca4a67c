#pragma once
// Rules of several tables, and lists of values that they share.

#include <string>
#include <string_view>

#include "convert/draft.hpp"
#include "convert/system.hpp"

namespace llmtrain::convert {

inline constexpr std::string_view yes_no = "true false";
inline constexpr std::string_view lora_if = "true=lora false=full";
inline constexpr std::string_view recompute_if = "true=block false=none selective=attention";
inline constexpr std::string_view schedulers =
    "linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt cosine_with_min_lr "
    "warmup_stable_decay";
inline constexpr std::string_view optimizers =
    "adamw adamw_torch=adamw adamw_torch_fused=adamw adamw_hf=adamw adamw_anyprecision=adamw adamw_apex_fused=adamw "
    "fused=adamw adamw_8bit adamw_bnb_8bit=adamw_8bit adamw_torch_8bit=adamw_8bit paged_adamw "
    "paged_adamw_32bit=paged_adamw paged_adamw_8bit "
    "adafactor lion lion_32bit=lion paged_lion_32bit=lion sgd muon";
inline constexpr std::string_view dtypes =
    "float16=fp16 fp16 half=fp16 bfloat16=bf16 bf16 float32=fp32 fp32 float=fp32 torch.float16=fp16 "
    "torch.bfloat16=bf16 "
    "torch.float32=fp32 no=fp32 auto=";
inline constexpr std::string_view sinks = "tensorboard wandb none= no= false= all=tensorboard jsonl= hdf5= csv= html";
inline constexpr std::string_view strategies = "no false=no none=no steps epoch best=steps";
inline constexpr std::string_view best_metrics =
    "loss=validation/loss eval_loss=validation/loss val_loss=validation/loss perplexity=validation/perplexity "
    "eval_perplexity=validation/perplexity eval_mean_token_accuracy=validation/token_accuracy "
    "mean_token_accuracy=validation/token_accuracy accuracy=validation/token_accuracy "
    "eval_accuracy=validation/token_accuracy eval_rouge=validation/rougeL";

/// A list of the two decays of Adam.
std::string set_betas(Draft& draft, const SettingValue& value);
/// An exponent of 2.
std::string set_initial_loss_scale(Draft& draft, const SettingValue& value);
/// A fixed scale of the loss; 0 is a dynamic one.
std::string set_loss_scale(Draft& draft, const SettingValue& value);
/// The path of a file of DeepSpeed, which is read, too.
std::string read_deepspeed_file(Draft& draft, const SettingValue& value);
/// The order of samples of Transformers.
std::string set_sampling(Draft& draft, const SettingValue& value);
/// A strategy of FSDP, such as "full_shard auto_wrap offload".
std::string set_fsdp(Draft& draft, const SettingValue& value);
/// Target modules of LoRA: a list, a text with commas, or all.
std::string set_target_modules(Draft& draft, const SettingValue& value);
/// The kind of a model with adapters, such as SEQ_CLS.
std::string set_adapter_task(Draft& draft, const SettingValue& value);
/// An initialisation of adapters: true, gaussian, or what is not there.
std::string set_lora_init(Draft& draft, const SettingValue& value);
std::string set_pissa(Draft& draft, const SettingValue& value);
std::string set_loftq_bits(Draft& draft, const SettingValue& value);
std::string check_loftq_iterations(Draft& draft, const SettingValue& value);
/// Ranks or alphas of single modules.
std::string set_rank_pattern(Draft& draft, const SettingValue& value);
std::string set_alpha_pattern(Draft& draft, const SettingValue& value);
/// ZeRO stage 2 where DeepSpeed is used without settings.
std::string use_deepspeed(Draft& draft, const SettingValue& value);
/// The path of a Jinja template; its text has to be written to a file.
std::string set_jinja_template(Draft& draft, const SettingValue& value);
/// Trained tokens: those of the prompt, too, or not.
std::string train_on_prompt(Draft& draft, const SettingValue& value);

}  // namespace llmtrain::convert
