#include "convert/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace llmtrain::convert {
namespace {

using Kind = SettingValue::Kind;

bool is_true(const SettingValue& value) { return value.boolean().value_or(false); }

std::string set_pattern(Draft& draft, const SettingValue& value, std::string_view key) {
  SettingValue list = SettingValue::scalar(Kind::list, "", value.line);
  for (const auto& [module, number] : value.members) {
    list.items.push_back(SettingValue::scalar(Kind::text, fmt::format("{}:{}", module, number.text), value.line));
  }
  return list.items.empty() ? "" : draft.set(key, list);
}

}  // namespace

std::string set_betas(Draft& draft, const SettingValue& value) {
  if (value.items.size() < 2) return value.print() + ": must be a list of two numbers";
  const std::string wrong = draft.set("optimizer.beta1", value.items[0]);
  return wrong.empty() ? draft.set("optimizer.beta2", value.items[1]) : wrong;
}

std::string set_initial_loss_scale(Draft& draft, const SettingValue& value) {
  const std::optional<int64_t> power = value.integer();
  if (!power || *power < 0 || *power > 62) return value.print() + ": must be an exponent of 2";
  return draft.set_text("precision.initial_loss_scale", print_number(std::ldexp(1.0, static_cast<int>(*power))));
}

std::string set_loss_scale(Draft& draft, const SettingValue& value) {
  if (value.number() == 0.0) return draft.set_text("precision.loss_scale", "dynamic");
  return draft.set("precision.loss_scale", value);
}

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

std::string set_sampling(Draft& draft, const SettingValue& value) {
  if (value.text == "random") return "";
  if (value.text == "sequential") return draft.set_text("data.shuffle", "false");
  if (value.text == "group_by_length") return draft.set_text("data.group_by_length", "true");
  return value.print() + " has no counterpart here";
}

std::string set_fsdp(Draft& draft, const SettingValue& value) {
  std::string words = value.text;
  for (const SettingValue& item : value.items) words += " " + item.text;
  if (has_word(words, "offload")) draft.set_text("parallel.offload_optimizer", "cpu");
  if (has_word(words, "full_shard") || has_word(words, "hybrid_shard") || is_true(value)) draft.set_fact("zero", "3");
  if (has_word(words, "shard_grad_op") || has_word(words, "hybrid_shard_zero2")) draft.set_fact("zero", "2");
  if (has_word(words, "no_shard")) draft.set_fact("zero", "0");
  return "";
}

std::string set_target_modules(Draft& draft, const SettingValue& value) {
  const auto is_all = [](const SettingValue& one) { return one.text == "all" || one.text == "all-linear"; };
  const auto is_all_or_none = [&](const SettingValue& one) { return is_all(one) || lower_case(one.text) == "none"; };
  const bool all = is_all(value) || is_true(value) ||
                   (std::ranges::any_of(value.items, is_all) && std::ranges::all_of(value.items, is_all_or_none));
  if (all) return draft.set_text("lora.target_modules", "all-linear");
  if (value.boolean()) return "";
  return draft.set("lora.target_modules", value);
}

std::string set_lora_init(Draft& draft, const SettingValue& value) {
  if (is_true(value)) return draft.set_text("lora.init", "kaiming");
  for (const char* known : {"gaussian", "pissa", "olora", "loftq"}) {
    if (value.text == known) return draft.set_text("lora.init", known);
  }
  // Singular values are exact here, whatever the number of iterations.
  if (value.text.starts_with("pissa_niter_")) return draft.set_text("lora.init", "pissa");
  return value.print() + " has no counterpart here; kaiming, gaussian, pissa, olora or loftq";
}

std::string set_adapter_task(Draft& draft, const SettingValue& value) {
  if (value.text == "CAUSAL_LM") return {};
  if (value.text != "SEQ_CLS" && value.text != "TOKEN_CLS") {
    return value.print() + " has no counterpart here; CAUSAL_LM, SEQ_CLS or TOKEN_CLS";
  }
  draft.set_fact("task", "classify");
  return draft.set_text("classify.kind", value.text == "SEQ_CLS" ? "sequence" : "token");
}

std::string set_pissa(Draft& draft, const SettingValue& value) {
  return is_true(value) ? draft.set_text("lora.init", "pissa") : "";
}

std::string set_loftq_bits(Draft& draft, const SettingValue& value) {
  if (value.text != "4") return value.print() + " bits are not supported with LoftQ; 4";
  return draft.set_text("quantization.bits", "4");
}

std::string check_loftq_iterations(Draft& /*draft*/, const SettingValue& value) {
  return value.text == "1" ? "" : value.print() + " iterations are not supported; 1";
}

std::string set_rank_pattern(Draft& draft, const SettingValue& value) {
  return set_pattern(draft, value, "lora.rank_pattern");
}

std::string set_alpha_pattern(Draft& draft, const SettingValue& value) {
  return set_pattern(draft, value, "lora.alpha_pattern");
}

std::string use_deepspeed(Draft& draft, const SettingValue& value) {
  if (is_true(value)) draft.set_fact("zero", "2");
  return "";
}

std::string set_jinja_template(Draft& draft, const SettingValue& value) {
  const bool is_text = value.text.find_first_of("{\n") != std::string::npos;
  return is_text ? "the text of a template: write it to a file, and name that" : draft.set("chat.template", value);
}

std::string train_on_prompt(Draft& draft, const SettingValue& value) {
  return is_true(value) ? draft.set_text("chat.train_on", "all") : "";
}

}  // namespace llmtrain::convert
