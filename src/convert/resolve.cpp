#include "convert/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace llmtrain::convert {
namespace {

bool names_file(const std::string& text) {
  std::error_code ignored;
  if (text.starts_with('.') || text.starts_with('/') || text.starts_with('~') || text.starts_with("$")) return true;
  for (const std::string_view ending : {".jsonl", ".json", ".ndjson", ".jsonlines", ".txt", ".h5", ".gz", ".zst",
                                        ".csv", ".tsv", ".parquet", ".arrow", ".feather"}) {
    if (text.ends_with(ending)) return true;
  }
  return std::filesystem::exists(text, ignored);
}

/// Sets a key to the text of a deck that follows from a fact, unless another setting decided it.
void set_from(Draft& draft, std::string_view key, const std::string& text, const Draft::Given& fact) {
  if (draft.has(key)) return;
  draft.from(fact.origin, fact.is_default);
  if (std::string wrong = draft.set_text(key, text); !wrong.empty()) draft.refuse(fact.origin, wrong);
}

/// The same with a text as it is, whose special characters the deck's text has escaped.
void set_plain(Draft& draft, std::string_view key, const std::string& text, const Draft::Given& fact) {
  if (draft.has(key)) return;
  draft.from(fact.origin, fact.is_default);
  std::string wrong = draft.set(key, SettingValue::scalar(SettingValue::Kind::text, text, 0));
  if (!wrong.empty()) draft.refuse(fact.origin, wrong);
}

void resolve_task(Draft& draft) {
  const Draft::Given* const fact = draft.fact("task");
  const bool teacher = draft.has("distill.teacher");
  const std::string task = teacher ? "distill" : fact ? fact->text : "pretrain";
  draft.from(fact ? fact->origin : "the kind of the settings", true);
  const bool preference_loss = task == "kto" || task == "orpo" || task == "simpo" || task == "cpo";
  if (preference_loss) draft.set_text("dpo.loss", task);
  if (task == "rloo") draft.replace("grpo.loss", "rloo");
  draft.set_text("run.task", preference_loss ? "dpo" : task == "rloo" ? "grpo" : task);
  if (draft.is("run.task", "grpo") && !draft.has("rewards.functions"))
    draft.need("rewards.functions", "what completions are worth, such as exact:COLUMN or command:PROGRAM");
  if (draft.is("run.task", "distill") && !draft.has("distill.teacher"))
    draft.need("distill.teacher", "the folder of the teacher");
  if (draft.is("run.task", "ppo") && !draft.has("ppo.reward_model"))
    draft.need("ppo.reward_model", "the folder of a reward model");
}

void resolve_model(Draft& draft) {
  const Draft::Given* const model = draft.fact("model");
  const bool new_model = draft.is_fact("new_weights", "true") || (!model && draft.has("model.d_model"));
  if (model && !new_model) {
    set_plain(draft, "model.path", model->text, *model);
    for (const std::string_view shape : {"d_model", "n_layers", "n_heads", "d_ff", "vocab_size", "max_seq_len", "bias"})
      draft.erase(fmt::format("model.{}", shape));
    if (!names_file(model->text) && model->text.find("${") == std::string::npos) {
      draft.remark(fmt::format("Download the model once: hf download {0} --local-dir {0}", model->text));
    }
  }
  if (draft.has("model.path") || draft.has("model.d_model") || draft.has("lora.path")) return;
  if (new_model || (draft.is("run.task", "pretrain") && !draft.is_fact("finetuning", "lora"))) {
    draft.need("model.path", "the folder of a model to start from, or a shape: d_model, n_layers, n_heads");
  } else {
    draft.need("model.path", "the folder of the model to fine-tune");
  }
}

bool any_given_in(const Draft& draft, std::string_view section) {
  return std::ranges::any_of(
      draft.values(), [&](const auto& entry) { return entry.first.starts_with(section) && !entry.second.is_default; });
}

void resolve_finetuning(Draft& draft) {
  const Draft::Given* const fact = draft.fact("finetuning");
  std::string kind = fact                                                             ? fact->text
                     : any_given_in(draft, "lora.") || draft.has("quantization.bits") ? "lora"
                                                                                      : "full";
  draft.from(fact ? fact->origin : "adapters or quantised weights are set", fact && fact->is_default);
  if (kind == "qlora") draft.set_text("quantization.bits", "4");
  const bool quantised = draft.has("quantization.bits") && !draft.is("quantization.bits", "0");
  if (kind == "qlora" || (quantised && kind != "lora")) {
    if (kind != "qlora")
      draft.remark("Quantised weights are frozen, so that adapters are trained: run.finetuning = lora.");
    kind = "lora";
  }
  if (kind != "full" || fact) draft.set_text("run.finetuning", kind == "none" ? "full" : kind);
}

/// Keeps all rows for training unless the settings say what is held out; asks for validation data that they use.
void resolve_validation(Draft& draft) {
  if (draft.has("data.validation") || draft.has("data.validation_fraction")) return;
  const auto above_0 = [&draft](std::string_view key) { return draft.number(key, 0) > 0; };
  const bool measures =
      draft.fact("eval_strategy") ? !draft.is_fact("eval_strategy", "no") : draft.fact("eval_steps") != nullptr;
  const bool wants_best = draft.is("evaluation.load_best_at_end", "true");
  const bool used = measures || wants_best || above_0("evaluation.every_steps") || above_0("evaluation.every_epochs") ||
                    above_0("evaluation.early_stopping_patience");
  draft.from("no settings of held out rows: all are trained on", true);
  draft.set_text("data.validation_fraction", "0");
  if (draft.needs().contains("data.validation")) return;
  if (used) return draft.need("data.validation", "files of validation data, or a validation_fraction above 0");
  draft.set_fact("eval_strategy", "no");
}

void resolve_packing(Draft& draft) {
  const Draft::Given* const packing = draft.fact("packing");
  const Draft::Given* const strategy = draft.fact("packing_strategy");
  if (!packing) return;
  const std::string kind = packing->text == "false"           ? "none"
                           : strategy                         ? strategy->text
                           : draft.is("run.task", "pretrain") ? "wrap"
                                                              : "best_fit";
  set_from(draft, "data.packing", kind, *packing);
}

void resolve_sequence_length(Draft& draft) {
  if (draft.has("batch.sequence_length")) return;
  const Draft::Given* const prompt = draft.fact("prompt_length");
  const double completion = draft.number("rollout.max_new_tokens", 0);
  if (prompt && completion > 0) {
    const double length = draft.fact_number("prompt_length").value_or(0) + completion;
    set_from(draft, "batch.sequence_length", print_number(length), *prompt);
  } else if (completion > 0) {
    draft.need("batch.sequence_length",
               fmt::format("tokens of the longest prompt, and {} of a completion", completion));
  } else if (const Draft::Given* const length = draft.find("model.max_seq_len")) {
    set_from(draft, "batch.sequence_length", length->text, *length);
  } else {
    draft.need("batch.sequence_length", "tokens of a sample");
  }
}

void resolve_data(Draft& draft) {
  const auto place = [&draft](std::string_view fact_name, std::string_view key, const std::string& what) {
    const Draft::Given* const fact = draft.fact(fact_name);
    if (fact && names_file(fact->text)) return set_plain(draft, key, fact->text, *fact);
    if (draft.has(key) || draft.needs().contains(key)) return;
    if (fact) draft.need(key, fmt::format("files with the rows of the data set {}, as JSON lines", fact->text));
    if (!fact && !what.empty()) draft.need(key, what);
  };
  place("dataset", "data.train", "files of training data");
  place("validation_data", "data.validation", "");
  resolve_validation(draft);
  resolve_packing(draft);
  resolve_sequence_length(draft);
}

/// Factors of a step's sequences.
struct Batch {
  int64_t micro = 1, passes = 1, world = 1, global = 1;
  bool is_product() const { return micro * passes * world == global; }
  std::string print() const {
    return fmt::format("{} sequences x {} pass{} x {} GPU{}", micro, passes, passes == 1 ? "" : "es", world,
                       world == 1 ? "" : "s");
  }
};

/// Fills in the factors that the settings leave out, as far as the whole is their multiple.
Batch batch_of(const Draft& draft) {
  const std::optional<int64_t> micro = draft.fact_count("micro"), passes = draft.fact_count("accumulation"),
                               global = draft.fact_count("global"), world = draft.fact_count("world");
  Batch batch{micro.value_or(1), passes.value_or(1), world.value_or(1), 1};
  const bool world_given = draft.ranks() > 0 || world;
  if (draft.ranks() > 0) batch.world = draft.ranks();
  const auto left = [&](int64_t factors) { return global && *global % factors == 0 ? *global / factors : 1; };
  if (micro && !passes) batch.passes = left(batch.micro * batch.world);
  if (micro && passes && !world_given) batch.world = left(batch.micro * batch.passes);
  if (!micro && global) batch.micro = std::max<int64_t>(*global / (batch.passes * batch.world), 1);
  batch.global = global.value_or(batch.micro * batch.passes * batch.world);
  return batch;
}

/// Batches of prompts have a group of completions for each.
void resolve_groups(Draft& draft) {
  const Draft::Given* const prompts = draft.fact("prompts");
  if (!prompts) return;
  draft.from(prompts->origin, prompts->is_default);
  draft.set_fact("micro", print_number(draft.fact_number("prompts").value_or(1) * draft.number("grpo.group_size", 8)));
}

void resolve_batch(Draft& draft) {
  resolve_groups(draft);
  const Draft::Given* const global = draft.fact("global");
  if (!draft.fact("micro") && !global && !draft.fact("accumulation")) return;
  const Batch batch = batch_of(draft);
  draft.from(fmt::format("sequences of a GPU, {}", draft.fact("micro") ? draft.fact("micro")->origin : "by the whole"),
             false);
  draft.set_text("batch.micro", std::to_string(batch.micro));
  draft.from(batch.is_product() ? batch.print() : global->origin, false);
  draft.set_text("batch.global", std::to_string(batch.global));
  if (!batch.is_product()) {
    draft.remark(fmt::format("The batch of {} is not {} = {}: batch.global is the former.", batch.global, batch.print(),
                             batch.micro * batch.passes * batch.world));
  }
  if (!global && !draft.fact("world") && draft.ranks() == 0) {
    draft.remark("batch.global is that of one GPU: convert with --ranks N for a job of N GPUs.");
  }
}

/// Steps of each epoch are those of the run where it has one epoch.
void resolve_steps_of_epoch(Draft& draft, const Draft::Given& steps, double epochs) {
  const int64_t count = draft.fact_count("steps_of_epoch").value_or(0);
  if (count > 0 && epochs == 1) return set_from(draft, "run.max_steps", std::to_string(count), steps);
  draft.refuse(steps.origin, fmt::format("{} steps in each of {} epochs: run.max_steps counts those of the run, which "
                                         "begins a second epoch after all rows",
                                         steps.text, epochs));
}

void resolve_length(Draft& draft) {
  const Draft::Given* const steps = draft.fact("max_steps");
  const Draft::Given* const epochs = draft.fact("epochs");
  if (const Draft::Given* const of_epoch = draft.fact("steps_of_epoch"))
    resolve_steps_of_epoch(draft, *of_epoch, draft.fact_number("epochs").value_or(1));
  if (steps && draft.fact_count("max_steps").value_or(0) > 0) {
    set_from(draft, "run.max_steps", std::to_string(*draft.fact_count("max_steps")), *steps);
  } else if (epochs && !draft.has("run.max_steps")) {
    set_from(draft, "run.epochs", print_number(draft.fact_number("epochs").value_or(1)), *epochs);
  }
  if (!draft.has("run.max_steps") && !draft.has("run.epochs")) {
    draft.need("run.epochs", "passes over the data, or max_steps");
  }
}

/// Steps of an interval: below 1 it is a fraction of all steps.
std::optional<int64_t> interval(const Draft& draft, double value) {
  if (value >= 1) return static_cast<int64_t>(value);
  const double steps = draft.number("run.max_steps", 0);
  if (steps > 0) return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps * value)));
  return {};
}

/// DeepSpeed's warm-ups have 1000 steps and a logarithm unless the settings say otherwise.
void resolve_deepspeed_warmup(Draft& draft) {
  const Draft::Given* const scheduler = draft.fact("deepspeed_scheduler");
  if (!scheduler) return;
  const Draft::Given* const type = draft.fact("warmup_type");
  if (!type || type->text != "linear") {
    draft.refuse(type ? type->origin : scheduler->origin,
                 "the warm-up here is linear; DeepSpeed's is by the logarithm of the step, as warmup_type is log by "
                 "default");
  }
  if (draft.fact("warmup_steps")) return;
  draft.from("DeepSpeed's default: warmup_num_steps", true);
  draft.set_fact("warmup_steps", "1000");
}

/// A decay ends with the run; that of the settings may not.
void resolve_decay_steps(Draft& draft) {
  const Draft::Given* const decay = draft.fact("decay_steps");
  const double end = draft.number("run.max_steps", 0);
  if (!decay || draft.is("schedule.name", "constant") || draft.fact_number("decay_steps") == end) return;
  const std::string text = fmt::format(
      "the decay of {} steps would end here with run.max_steps = {}; set one length for both", decay->text, end);
  if (decay->is_default) return draft.remark(fmt::format("{}: {}.", decay->origin, text));
  draft.refuse(decay->origin, text);
}

void resolve_warmup(Draft& draft) {
  const Draft::Given *const steps_given = draft.fact("warmup_steps"), *const ratio_given = draft.fact("warmup_ratio");
  if (draft.is("schedule.name", "constant")) {
    for (const Draft::Given* const given : {steps_given, ratio_given}) {
      if (given) draft.refuse(given->origin, "the schedule constant has no warm-up", Effect::no_effect);
    }
    return;
  }
  const double steps = draft.fact_number("warmup_steps").value_or(0);
  const bool ratio_counts = !steps_given || (ratio_given && !ratio_given->is_default);
  const double ratio = ratio_counts ? draft.fact_number("warmup_ratio").value_or(0) : 0;
  if (steps >= 1) {
    set_from(draft, "schedule.warmup_steps", fmt::format("{}", static_cast<int64_t>(steps)), *steps_given);
  } else if (steps > 0) {
    set_from(draft, "schedule.warmup_ratio", print_number(steps), *steps_given);
  } else if (ratio > 0) {
    set_from(draft, "schedule.warmup_ratio", print_number(ratio), *ratio_given);
  }
}

void resolve_schedule(Draft& draft) {
  resolve_deepspeed_warmup(draft);
  resolve_decay_steps(draft);
  resolve_warmup(draft);
  if (const auto rate = draft.fact_number("min_lr_rate")) {
    set_from(draft, "schedule.min_learning_rate", print_number(*rate * draft.number("schedule.learning_rate", 1e-3)),
             *draft.fact("min_lr_rate"));
    if (draft.is("schedule.name", "cosine")) draft.replace("schedule.name", "cosine_with_min_lr");
  }
  if (draft.is("schedule.name", "cosine") && draft.number("schedule.num_cycles", 0.5) != 0.5) {
    draft.remark("A cosine with num_cycles = " + draft.find("schedule.num_cycles")->text +
                 ", as in Transformers, is a number of waves: 0.5 decays once, 1 returns to the peak at the end.");
  }
}

void resolve_optimizer(Draft& draft) {
  if (const Draft::Given* const name = draft.fact("optimizer")) set_from(draft, "optimizer.name", name->text, *name);
}

void resolve_precision(Draft& draft) {
  const auto is_true = [&draft](std::string_view name) { return draft.is_fact(name, "true"); };
  const auto set = [&draft](std::string_view fact, const std::string& compute) {
    const Draft::Given* const given = draft.fact(fact);
    draft.from(given->origin, given->is_default);
    draft.set_text("precision.compute", compute);
  };
  const bool bf16_wins = is_true("bf16") && !(draft.fact("bf16")->is_default && is_true("fp16"));
  if (bf16_wins && is_true("fp16")) draft.refuse(draft.fact("fp16")->origin, "bf16 is true, too: only one can be");
  if (bf16_wins) return set("bf16", "bf16");
  if (is_true("fp16")) return set("fp16", "fp16");
  if (is_true("amp")) return set("amp", draft.fact("dtype") ? draft.fact("dtype")->text : "fp16");
  if (draft.fact("dtype") && !draft.is_fact("dtype", "fp32") && !draft.fact("amp"))
    return set("dtype", draft.fact("dtype")->text);
  if (is_true("tf32")) return set("tf32", "tf32");
  for (const std::string_view name : {"bf16", "fp16", "amp", "dtype"}) {
    if (draft.fact(name)) return set(name, "fp32");
  }
}

void resolve_parallel(Draft& draft) {
  if (const Draft::Given* const zero = draft.fact("zero")) set_from(draft, "parallel.zero", zero->text, *zero);
  const Draft::Given* const offload = draft.fact("offload_parameters");
  if (!offload || offload->text == "none") return;
  if (draft.is("parallel.zero", "3")) return set_from(draft, "parallel.offload_parameters", offload->text, *offload);
  draft.remark("Weights are offloaded with ZeRO stage 3 only, as in DeepSpeed: " + offload->origin + " has no effect.");
}

/// Sets every_steps or every_epochs of a section from a strategy and an interval.
void resolve_interval(Draft& draft, const std::string& section, std::string_view strategy_name,
                      std::string_view steps_name) {
  const Draft::Given* const strategy = draft.fact(strategy_name);
  const Draft::Given* const given = draft.fact(steps_name);
  const bool steps_win = strategy != nullptr && strategy->is_default && strategy->text == "epoch" && given != nullptr;
  const std::string kind = strategy != nullptr && !steps_win ? strategy->text : "steps";
  if (strategy != nullptr && kind == "no") return set_from(draft, section + ".every_steps", "0", *strategy);
  if (strategy != nullptr && kind == "epoch" && section == "log")
    return draft.refuse(strategy->origin, "the log has lines by steps: give log.every_steps");
  if (strategy != nullptr && kind == "epoch") return set_from(draft, section + ".every_epochs", "1", *strategy);
  const std::optional<double> value = draft.fact_number(steps_name);
  if (!value) return;
  if (*value < 0) return draft.refuse(given->origin, fmt::format("{} is not an interval", *value));
  if (const auto steps = interval(draft, *value); steps || *value == 0) {
    return set_from(draft, section + ".every_steps", std::to_string(steps.value_or(0)), *given);
  }
  // a fraction of a run of unknown length
  if (section == "log")
    return draft.refuse(given->origin,
                        "a fraction of the steps, whose number does not follow from the epochs: give log.every_steps");
  set_from(draft, section + ".every_epochs", print_number(*value * draft.number("run.epochs", 1)), *given);
}

void resolve_intervals(Draft& draft) {
  if (!draft.fact("eval_steps") && draft.is_fact("eval_strategy", "steps") && draft.fact("logging_steps")) {
    draft.from("logging_steps, as eval_steps is not given", true);
    draft.set_fact("eval_steps", draft.fact("logging_steps")->text);
  }
  resolve_interval(draft, "log", "logging_strategy", "logging_steps");
  resolve_interval(draft, "evaluation", "eval_strategy", "eval_steps");
  resolve_interval(draft, "checkpoint", "save_strategy", "save_steps");
  if (draft.is_fact("eval_strategy", "no")) {
    draft.from(draft.fact("eval_strategy")->origin, draft.fact("eval_strategy")->is_default);
    draft.set_text("evaluation.at_end", "false");
  }
}

void resolve_run(Draft& draft) {
  const Draft::Given* const folder = draft.fact("output_dir");
  const Draft::Given* const name = draft.fact("run_name");
  if (folder) {
    const std::filesystem::path path = std::filesystem::path(folder->text).lexically_normal();
    const std::filesystem::path leaf = path.has_filename() ? path.filename() : path.parent_path().filename();
    const std::filesystem::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    set_plain(draft, "run.output", parent.empty() ? "." : parent.string(), *folder);
    if (!leaf.empty() && leaf != "." && leaf != "..") set_plain(draft, "run.name", leaf.string(), *folder);
  } else if (name) {
    set_plain(draft, "run.name", name->text, *name);
  }
  std::string sinks;
  if (const Draft::Given* const fact = draft.fact("sinks")) {
    for (const std::string_view sink : {"tensorboard", "wandb", "html"}) {
      if (has_word(fact->text, sink)) sinks += fmt::format(", {}", sink);
    }
    draft.from(fact->origin, fact->is_default);
    const std::string wrong = sinks.empty() ? "" : draft.set_text("log.sinks", "hdf5, jsonl" + sinks);
    if (!wrong.empty()) draft.remark("log.sinks: " + wrong);
  }
  const bool wandb = sinks.find("wandb") != std::string::npos;
  if (wandb && name) set_plain(draft, "wandb.name", name->text, *name);
}

/// SimPO's margin as a multiple of beta.
void resolve_preference(Draft& draft) {
  const Draft::Given* const ratio = draft.fact("gamma_beta_ratio");
  if (!ratio) return;
  const double gamma = draft.fact_number("gamma_beta_ratio").value_or(0) * draft.number("dpo.beta", 0.1);
  set_from(draft, "dpo.simpo_gamma", print_number(gamma), *ratio);
}

void resolve_curriculum(Draft& draft) {
  if (draft.is_fact("curriculum", "true")) return;
  if (!draft.is_fact("curriculum", "false")) return;
  std::vector<std::string> keys;
  for (const auto& entry : draft.values()) {
    if (entry.first.starts_with("curriculum.")) keys.push_back(entry.first);
  }
  for (const std::string& key : keys) draft.erase(key);
}

/// Removes keys that the deck's task does not use.
void remove_unused(Draft& draft) {
  std::vector<std::string> unused;
  const Draft::Given* const task = draft.find("run.task");
  const bool lora = draft.is("run.finetuning", "lora"), freeze = draft.is("run.finetuning", "freeze");
  const auto has_sink = [&draft](std::string_view sink) {
    return draft.has("log.sinks") && draft.find("log.sinks")->text.find(sink) != std::string::npos;
  };
  for (const auto& [name, given] : draft.values()) {
    const DeckKeys::Key& key = *draft.keys().find(name);
    const bool of_task = key.tasks.text().find(task->text) != std::string::npos;
    const bool of_kind = (lora || (!name.starts_with("lora.") && !name.starts_with("quantization."))) &&
                         (freeze || !name.starts_with("freeze.")) && (has_sink("wandb") || !name.starts_with("wandb."));
    if ((!of_task && (key.strict || given.is_default)) || !of_kind) unused.push_back(name);
  }
  for (const std::string& name : unused) draft.erase(name);
}

}  // namespace

std::string wrong_fact(std::string_view fact, const SettingValue& value) {
  constexpr std::string_view counts = "micro accumulation global world prompts",
                             numbers =
                                 "max_steps epochs warmup_steps warmup_ratio min_lr_rate eval_steps save_steps "
                                 "logging_steps decay_steps gamma_beta_ratio prompt_length steps_of_epoch";
  const std::optional<int64_t> count = value.integer();
  if (has_word(counts, fact)) {
    if (!count || *count < 1) return value.print() + ": must be a whole number above 0";
    return *count > max_batch ? fmt::format("{} is above {}", value.print(), max_batch) : "";
  }
  if (!has_word(numbers, fact)) return "";
  const std::optional<double> number = value.number();
  if (!number || std::fabs(*number) > 1e15) return value.print() + ": must be a number below 1e15";
  return has_word("max_steps steps_of_epoch", fact) && !count ? value.print() + ": must be a whole number" : "";
}

void resolve(Draft& draft) {
  resolve_task(draft);
  resolve_finetuning(draft);
  resolve_model(draft);
  resolve_data(draft);
  resolve_batch(draft);
  resolve_length(draft);
  resolve_schedule(draft);
  resolve_optimizer(draft);
  resolve_precision(draft);
  resolve_parallel(draft);
  resolve_intervals(draft);
  resolve_run(draft);
  resolve_preference(draft);
  resolve_curriculum(draft);
  remove_unused(draft);
}

}  // namespace llmtrain::convert
