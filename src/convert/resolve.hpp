#pragma once
#include "convert/draft.hpp"

namespace llmtrain::convert {

/// Sets the keys that follow from several settings together. The facts (by Draft::fact):
///   task                 a task of the deck, or kto, orpo, simpo, cpo, rloo
///   model, dataset, validation_data   a folder or file, or a name of the hub
///   finetuning           full, lora, qlora, freeze, none
///   new_weights          true: no weights are loaded
///   optimizer            its name, unless the key is set
///   micro, accumulation, global, world   sequences of a GPU, passes, sequences of a step, GPUs
///   prompts              prompts of a GPU, each with grpo.group_size completions
///   epochs, max_steps, steps_of_epoch, warmup_steps, warmup_ratio, min_lr_rate
///   decay_steps          steps of the schedule's decay
///   warmup_type, deepspeed_scheduler   linear, log; DeepSpeed's name of the schedule
///   packing, packing_strategy   true, false; best_fit, first_fit, wrap
///   bf16, fp16, tf32, dtype, amp   precision of the passes
///   eval_strategy, eval_steps, save_strategy, save_steps, logging_strategy, logging_steps
///   zero, offload_parameters   ZeRO stage; cpu, nvme, none
///   output_dir, run_name, sinks (separated by spaces), curriculum (true, false)
/// Settings whose values the deck cannot have are refused (Draft::refuse).
void resolve(Draft& draft);

/// Fault of the value of a fact that is a number, or "".
std::string wrong_fact(std::string_view fact, const SettingValue& value);

}  // namespace llmtrain::convert
