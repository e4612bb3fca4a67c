// Rules of DeepSpeed, FSDP and Accelerate.
#include <fmt/format.h>

#include <filesystem>

#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

/// The path of a file of DeepSpeed, which is read, too.
std::string read_deepspeed_file(Draft& draft, const SettingValue& value) {
  std::error_code ignored;
  for (const std::filesystem::path& path :
       {std::filesystem::path(value.text), draft.folder / std::filesystem::path(value.text)}) {
    if (!std::filesystem::is_regular_file(path, ignored) || path.extension() != ".json") continue;
    draft.files.push_back(path.lexically_normal().string());
    return "";
  }
  const bool third = value.text.find('3') != std::string::npos;
  draft.set_fact("zero", third ? "3" : "2");
  draft.remark(fmt::format("{} is not here: ZeRO stage {} is assumed by its name. Convert it where it is, and compare.",
                           value.text, third ? 3 : 2));
  return "";
}

/// ZeRO stage 2 where DeepSpeed is used without settings.
std::string use_deepspeed(Draft& draft, const SettingValue& value) {
  if (value.boolean() == true) draft.set_fact("zero", "2");
  return "";
}

/// Warm-ups follow the logarithm of the step unless warmup_type is linear (deepspeed/runtime/lr_schedules.py).
std::string set_scheduler(Draft& draft, const SettingValue& value) {
  std::string name;
  if (value.text == "WarmupLR") name = "constant_with_warmup";
  if (value.text == "WarmupDecayLR") name = "linear";
  if (value.text == "WarmupCosineLR") name = "cosine";
  if (name.empty()) return value.print() + " has no counterpart here (known: WarmupLR, WarmupDecayLR, WarmupCosineLR)";
  draft.set_fact("deepspeed_scheduler", value.text);
  return draft.set_text("schedule.name", name);
}

/// A strategy of FSDP, such as "full_shard auto_wrap offload".
std::string set_fsdp(Draft& draft, const SettingValue& value) {
  std::string words = value.text;
  for (const SettingValue& item : value.items) words += " " + item.text;
  if (has_word(words, "offload")) draft.set_text("parallel.offload_optimizer", "cpu");
  if (has_word(words, "full_shard") || has_word(words, "hybrid_shard") || value.boolean() == true)
    draft.set_fact("zero", "3");
  if (has_word(words, "shard_grad_op") || has_word(words, "hybrid_shard_zero2")) draft.set_fact("zero", "2");
  if (has_word(words, "no_shard")) draft.set_fact("zero", "0");
  return "";
}

std::string set_launch(Draft& draft, const SettingValue&) {
  draft.remark(
      "Accelerate's file describes how a job is launched: convert the settings of the training, too, and add these.");
  return "";
}

constexpr NamedRule rules[] = {
    {"read_deepspeed_file", read_deepspeed_file},
    {"use_deepspeed", use_deepspeed},
    {"set_scheduler", set_scheduler},
    {"set_fsdp", set_fsdp},
    {"set_launch", set_launch},
};

}  // namespace

std::span<const NamedRule> launch_rules() { return rules; }

}  // namespace llmtrain::convert
