// Rules of several programs, and single ones of TRL and LLaMA-Factory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

using Kind = SettingValue::Kind;

bool is_true(const SettingValue& value) { return value.boolean().value_or(false); }

/// Ranks or alphas of single modules, in a key of the deck.
std::string set_pattern(Draft& draft, const SettingValue& value, std::string_view key) {
  SettingValue list = SettingValue::scalar(Kind::list, "", value.line);
  for (const auto& [module, number] : value.members) {
    list.items.push_back(SettingValue::scalar(Kind::text, fmt::format("{}:{}", module, number.text), value.line));
  }
  return list.items.empty() ? "" : draft.set(key, list);
}

/// A list of the two decays of Adam.
std::string set_betas(Draft& draft, const SettingValue& value) {
  if (value.items.size() < 2) return value.print() + ": must be a list of two numbers";
  const std::string wrong = draft.set("optimizer.beta1", value.items[0]);
  return wrong.empty() ? draft.set("optimizer.beta2", value.items[1]) : wrong;
}

/// An exponent of 2.
std::string set_initial_loss_scale(Draft& draft, const SettingValue& value) {
  const std::optional<int64_t> power = value.integer();
  if (!power || *power < 0 || *power > 62) return value.print() + ": must be an exponent of 2";
  return draft.set_text("precision.initial_loss_scale", print_number(std::ldexp(1.0, static_cast<int>(*power))));
}

/// A fixed scale of the loss; 0 is a dynamic one.
std::string set_loss_scale(Draft& draft, const SettingValue& value) {
  if (value.number() == 0.0) return draft.set_text("precision.loss_scale", "dynamic");
  return draft.set("precision.loss_scale", value);
}

/// The order of samples of Transformers.
std::string set_sampling(Draft& draft, const SettingValue& value) {
  if (value.text == "random") return "";
  if (value.text == "sequential") return draft.set_text("data.shuffle", "false");
  if (value.text == "group_by_length") return draft.set_text("data.group_by_length", "true");
  return value.print() + " has no counterpart here";
}

/// An initialisation of adapters: true, gaussian, or what is not there.
std::string set_lora_init(Draft& draft, const SettingValue& value) {
  if (is_true(value)) return draft.set_text("lora.init", "kaiming");
  for (const char* known : {"gaussian", "pissa", "olora", "loftq"}) {
    if (value.text == known) return draft.set_text("lora.init", known);
  }
  // Singular values are exact here, whatever the number of iterations.
  if (value.text.starts_with("pissa_niter_")) return draft.set_text("lora.init", "pissa");
  return value.print() + " has no counterpart here; kaiming, gaussian, pissa, olora or loftq";
}

/// The kind of a model with adapters, such as SEQ_CLS.
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

/// The path of a Jinja template; its text has to be written to a file.
std::string set_jinja_template(Draft& draft, const SettingValue& value) {
  const bool is_text = value.text.find_first_of("{\n") != std::string::npos;
  return is_text ? "the text of a template: write it to a file, and name that" : draft.set("chat.template", value);
}

/// Trained tokens: those of the prompt, too, or not.
std::string train_on_prompt(Draft& draft, const SettingValue& value) {
  return is_true(value) ? draft.set_text("chat.train_on", "all") : "";
}

/// A loss of preferences of LLaMA-Factory.
std::string set_stage_loss(Draft& draft, const SettingValue& value) {
  const std::string& loss = value.text;
  return draft.set_text("dpo.loss", loss == "kto_pair" ? "kto" : loss);
}

/// The name of an end token; a dump of TRL's arguments hides it as <EOS_TOKEN>.
std::string set_eos_token(Draft& draft, const SettingValue& value) {
  return value.text == "<EOS_TOKEN>" ? "" : draft.set("data.eos_token", value);
}

/// The divergence of TRL's GKD, whose teacher always runs.
std::string set_gkd_beta(Draft& draft, const SettingValue& value) {
  draft.set_text("distill.loss", "jsd");
  draft.set_text("distill.cache", "false");
  return draft.set("distill.beta", value);
}

constexpr NamedRule rules[] = {
    {"set_betas", set_betas},
    {"set_initial_loss_scale", set_initial_loss_scale},
    {"set_loss_scale", set_loss_scale},
    {"set_sampling", set_sampling},
    {"set_target_modules", set_target_modules},
    {"set_lora_init", set_lora_init},
    {"set_adapter_task", set_adapter_task},
    {"set_pissa", set_pissa},
    {"set_loftq_bits", set_loftq_bits},
    {"check_loftq_iterations", check_loftq_iterations},
    {"set_pattern", set_pattern},
    {"set_jinja_template", set_jinja_template},
    {"train_on_prompt", train_on_prompt},
    {"set_stage_loss", set_stage_loss},
    {"set_eos_token", set_eos_token},
    {"set_gkd_beta", set_gkd_beta},
};

}  // namespace

std::string set_target_modules(Draft& draft, const SettingValue& value) {
  const auto is_all = [](const SettingValue& one) { return one.text == "all" || one.text == "all-linear"; };
  const auto is_all_or_none = [&](const SettingValue& one) { return is_all(one) || lower_case(one.text) == "none"; };
  const bool all = is_all(value) || is_true(value) ||
                   (std::ranges::any_of(value.items, is_all) && std::ranges::all_of(value.items, is_all_or_none));
  if (all) return draft.set_text("lora.target_modules", "all-linear");
  if (value.boolean()) return "";
  return draft.set("lora.target_modules", value);
}

std::span<const NamedRule> common_rules() { return rules; }

Rule bound_rule(std::string_view name, const std::string& words) {
  for (const auto all :
       {common_rules(), dataset_rules(), launch_rules(), scratch_rules(), axolotl_rules(), torchtune_rules()}) {
    const auto named = std::ranges::find(all, name, &NamedRule::name);
    if (named == all.end()) continue;
    if (const auto* const plain = std::get_if<RuleOfValue>(&named->rule)) return words.empty() ? Rule(*plain) : nullptr;
    if (words.empty()) return nullptr;
    return [rule = std::get<RuleOfWords>(named->rule), words](Draft& draft, const SettingValue& value) {
      return rule(draft, value, words);
    };
  }
  return nullptr;
}

}  // namespace llmtrain::convert
