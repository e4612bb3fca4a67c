// Rules of torchtune.
#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

/// A component such as torchtune.models.llama3.lora_llama3_8b: its name's beginning tells what is trained.
std::string set_model_component(Draft& draft, const SettingValue& value) {
  const std::string name = value.text.substr(value.text.rfind('.') + 1);
  draft.set_fact("finetuning", name.starts_with("qlora_") ? "qlora" : name.starts_with("lora_") ? "lora" : "full");
  if (value.text.find("vision") != std::string::npos) return value.print() + " reads images; models here read text";
  return "";
}

void add_target(Draft& draft, const std::string& names) {
  const Draft::Given* const before = draft.find("lora.target_modules");
  draft.replace("lora.target_modules", before == nullptr ? names : before->text + ", " + names);
}

std::string set_attention_modules(Draft& draft, const SettingValue& value) {
  for (const SettingValue& item : value.items) add_target(draft, item.text == "output_proj" ? "o_proj" : item.text);
  return "";
}

std::string set_mlp_modules(Draft& draft, const SettingValue& value) {
  if (value.boolean().value_or(false)) add_target(draft, "gate_proj, up_proj, down_proj");
  return "";
}

std::string set_output_module(Draft& draft, const SettingValue& value) {
  if (value.boolean().value_or(false)) add_target(draft, "lm_head");
  return "";
}

/// The share of the divergence, beside which the cross-entropy has the rest.
std::string set_kd_ratio(Draft& draft, const SettingValue& value) {
  const std::optional<double> ratio = value.number();
  if (!ratio || *ratio <= 0 || *ratio > 1) return "must be above 0, at most 1";
  return draft.set_text("distill.cross_entropy", print_number((1 - *ratio) / *ratio));
}

/// The function that builds a data set.
std::string set_dataset_builder(Draft& draft, const SettingValue& value, std::string_view builders) {
  const bool of_alpaca = value.text.ends_with(".alpaca_dataset") || value.text.ends_with(".alpaca_cleaned_dataset");
  draft.set_fact("builder", value.text);
  if (!draft.is_fact("builder", value.text)) {
    draft.replace("data.format", "auto");
    return "another builder than in " + draft.fact("builder")->origin + ": write all rows in one format";
  }
  if (std::string wrong = set_row_format_of(draft, value, builders); !wrong.empty()) return wrong;
  if (!of_alpaca) return "";
  draft.set_fact("dataset_of_alpaca", "true");
  if (!draft.fact("train_on_input")) draft.set_text("chat.train_on", "all");
  return use_template_of_rows(draft, "alpaca", "alpaca");
}

/// RSO is the hinge loss of DPO.
std::string set_loss(Draft& draft, const SettingValue& value) {
  return value.text.ends_with(".RSOLoss") ? draft.set_text("dpo.loss", "hinge") : "";
}

/// An amount that is added to the reward, such as -3; here it is subtracted.
std::string set_reward_penalty(Draft& draft, const SettingValue& value) {
  const std::optional<double> penalty = value.number();
  if (!penalty) return value.print() + ": must be a number";
  return draft.set_text("ppo.missing_eos_penalty", print_number(-*penalty));
}

std::string set_train_on_input(Draft& draft, const SettingValue& value) {
  const bool all = value.boolean().value_or(false);
  draft.set_fact("train_on_input", all ? "true" : "false");
  draft.erase("chat.train_on");
  return all ? draft.set_text("chat.train_on", "all") : "";
}

/// Columns of a data set by their names in torchtune; the input of instructions is a second text beside them.
std::string set_column_map(Draft& draft, const SettingValue& value) {
  const bool has_instruction = value.find("instruction") != nullptr || draft.is_fact("dataset_of_alpaca", "true");
  for (const auto& [theirs, column] : value.members) {
    std::string role = theirs;
    if (theirs == "instruction") role = "prompt";
    if (theirs == "input") role = has_instruction ? "query" : "prompt";
    if (theirs == "output") role = "response";
    if (theirs == "conversations") role = "messages";
    if (!has_word("prompt query response messages system chosen rejected", role)) {
      return "there is no column for " + theirs;
    }
    if (std::string wrong = set_column(draft, column, role); !wrong.empty()) return wrong;
  }
  return value.is(SettingValue::Kind::map) ? "" : value.print() + ": must be a map of names";
}

constexpr NamedRule rules[] = {
    {"set_model_component", set_model_component},
    {"set_attention_modules", set_attention_modules},
    {"set_mlp_modules", set_mlp_modules},
    {"set_output_module", set_output_module},
    {"set_kd_ratio", set_kd_ratio},
    {"set_dataset_builder", set_dataset_builder},
    {"set_loss", set_loss},
    {"set_reward_penalty", set_reward_penalty},
    {"set_train_on_input", set_train_on_input},
    {"set_column_map", set_column_map},
};

}  // namespace

std::span<const NamedRule> torchtune_rules() { return rules; }

}  // namespace llmtrain::convert
