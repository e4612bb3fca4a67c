// Rules of Axolotl.
#include <fmt/format.h>

#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

/// A switch of a precision, by the name of its fact: true, false, auto or full.
std::string set_precision(Draft& draft, const SettingValue& value, std::string_view fact) {
  draft.set_fact(fact, value.boolean().value_or(value.text == "full") ? "true" : "false");
  return "";
}

/// Sets every_epochs of a section from a number of times in each epoch; 0 is never.
std::string set_times_per_epoch(Draft& draft, const SettingValue& value, std::string_view section) {
  const std::optional<double> times = value.number();
  if (!times || *times < 0) return value.print() + ": must be a number of times";
  if (*times == 0) return draft.set_text(fmt::format("{}.every_steps", section), "0");
  return draft.set_text(fmt::format("{}.every_epochs", section), print_number(1 / *times));
}

std::string set_wandb(Draft& draft, const SettingValue& value) {
  if (value.text.empty()) return "";
  draft.set_fact("sinks", "wandb");
  return draft.set("wandb.project", value);
}

/// Keeps the batch of a GPU and the sequences of a step of one GPU until both are known: passes are their ratio.
std::string set_batch(Draft& draft, const SettingValue& value, std::string_view fact) {
  if (value.integer().value_or(0) < 1) return value.print() + ": must be a number of sequences";
  draft.set_fact(fact, std::to_string(*value.integer()));
  const int64_t micro = draft.fact_count("micro").value_or(0), whole = draft.fact_count("batch_of_gpu").value_or(0);
  const Draft::Given* const passes = draft.fact("accumulation");
  if (micro == 0 || whole == 0 || (passes && draft.is_default())) return "";
  if (passes) return passes->origin + " determines the passes already";
  draft.set_fact("accumulation", std::to_string(std::max<int64_t>(whole / micro, 1)));
  return whole % micro == 0 ? "" : fmt::format("{} is not a multiple of the {} sequences of a pass", whole, micro);
}

/// Modules of a list that all-linear leaves out, or "".
std::string beyond_linear(const Draft& draft) {
  const Draft::Given* const modules = draft.fact("modules");
  if (!modules || !draft.is_fact("all_linear", "true")) return "";
  const bool beyond = has_word(modules->text, "lm_head") || has_word(modules->text, "embed_tokens");
  return beyond ? "all-linear has neither the head nor the embedding: lora.modules_to_save" : "";
}

/// lora_target_linear: all linear layers, and so those of lora_target_modules, too.
std::string set_target_linear(Draft& draft, const SettingValue& value) {
  if (!value.boolean().value_or(false)) return "";
  draft.set_fact("all_linear", "true");
  const std::string wrong = draft.replace("lora.target_modules", "all-linear");
  return wrong.empty() ? beyond_linear(draft) : wrong;
}

std::string set_modules(Draft& draft, const SettingValue& value) {
  std::string names = value.text;
  for (const SettingValue& item : value.items) names += " " + item.text;
  draft.set_fact("modules", names);
  return draft.is_fact("all_linear", "true") ? beyond_linear(draft) : set_target_modules(draft, value);
}

/// IPO is a loss of DPO.
std::string set_rl(Draft& draft, const SettingValue& value) {
  return value.text == "ipo" ? draft.set_text("dpo.loss", "ipo") : "";
}

/// The trained roles of a conversation.
std::string set_roles_to_train(Draft& draft, const SettingValue& value) {
  const bool one = !value.is(SettingValue::Kind::list);
  for (const SettingValue& item : one ? std::vector<SettingValue>{value} : value.items) {
    if (!has_word("assistant gpt", item.text)) return item.print() + " is not trained alone; assistant is";
  }
  return !one && value.items.empty() ? "no role is trained" : draft.set_text("chat.train_on", "assistant");
}

/// A type of rows with an answer; alpaca has a template of its own.
std::string set_row_type(Draft& draft, const SettingValue& value, std::string_view row_types) {
  const std::string wrong = set_row_format_of(draft, value, row_types);
  return wrong.empty() && value.text == "alpaca" ? use_template_of_rows(draft, "alpaca", "alpaca") : wrong;
}

/// The types of preferences with the roles of columns that have names of their own. chatml and llama3 stand before
/// those without a dot.
constexpr std::string_view pair_types =
    "argilla=prompt:instruction,chosen:chosen_response,rejected:rejected_response argilla_chat= icr=prompt:input "
    "intel=prompt:question prompt_pairs= ultra= chat_template.argilla= chat_template.argilla_chat= "
    "chat_template.default= bradley_terry.chat_template=prompt:input";
constexpr std::string_view unpaired_types = "argilla=prompt:instruction intel=prompt:question prompt_pairs= ultra=";
constexpr std::string_view pairs_of_messages =
    "argilla_chat ultra chat_template.argilla chat_template.argilla_chat chat_template.default";

/// Columns of several roles: "role:column,...".
std::string set_columns(Draft& draft, std::string_view columns) {
  std::string wrong;
  each_word(columns, ',', [&](std::string_view column) {
    const size_t colon = column.find(':');
    const SettingValue name = SettingValue::scalar(SettingValue::Kind::text, std::string(column.substr(colon + 1)), 0);
    if (wrong.empty()) wrong = set_column(draft, name, column.substr(0, colon));
  });
  return wrong;
}

/// A type of rows with preferences, in a format of the deck.
std::string set_preference_type(Draft& draft, const SettingValue& value, std::string_view format) {
  const bool paired = format == "preference";
  const std::string name = value.text.substr(0, value.text.find('.'));
  const bool has_template = has_word("chatml llama3", name) && name != value.text;
  const std::string type = has_template ? value.text.substr(name.size() + 1) : value.text;
  const std::optional<std::string> columns = translated(paired ? pair_types : unpaired_types, type);
  const bool is_whole_name = type.find('.') != std::string::npos;
  if (!columns || has_template == is_whole_name) return set_row_format_of(draft, value, "");
  if (std::string wrong = set_row_format(draft, format); !wrong.empty()) return wrong;
  if (std::string wrong = set_columns(draft, *columns); !wrong.empty()) return wrong;
  if (!paired || !has_word(pairs_of_messages, type)) {
    draft.remark(draft.origin() +
                 ": texts have no chat template around them here; write prompts and answers as lists of messages.");
  }
  return has_template ? use_template_of_rows(draft, value.text, name) : "";
}

/// The factor of the divergence, of which the loss is a multiple here.
std::string set_kd_alpha(Draft& /*draft*/, const SettingValue& value) {
  return value.number() == 1
             ? ""
             : "the divergence has the factor 1: divide kd_ce_alpha by kd_alpha, as distill.cross_entropy";
}

/// The weight of the teacher in the mixture; 0 is the forward divergence.
std::string set_kd_beta(Draft& draft, const SettingValue& value) {
  if (value.number() == 0) return draft.set_text("distill.loss", "forward_kl");
  draft.set_text("distill.loss", "jsd");
  return draft.set("distill.beta", value);
}

constexpr NamedRule rules[] = {
    {"set_precision", set_precision},
    {"set_times_per_epoch", set_times_per_epoch},
    {"set_wandb", set_wandb},
    {"set_batch", set_batch},
    {"set_target_linear", set_target_linear},
    {"set_modules", set_modules},
    {"set_rl", set_rl},
    {"set_roles_to_train", set_roles_to_train},
    {"set_row_type", set_row_type},
    {"set_preference_type", set_preference_type},
    {"set_kd_alpha", set_kd_alpha},
    {"set_kd_beta", set_kd_beta},
};

}  // namespace

std::span<const NamedRule> axolotl_rules() { return rules; }

}  // namespace llmtrain::convert
