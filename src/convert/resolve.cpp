#include "convert/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "convert/system.hpp"

namespace llmtrain::convert {
namespace {

bool names_file(const std::string& text) {
  std::error_code ignored;
  if (text.starts_with('.') || text.starts_with('/') || text.starts_with('~') || text.starts_with("$")) return true;
  for (const std::string_view ending :
       {".jsonl", ".json", ".ndjson", ".jsonlines", ".txt", ".h5", ".gz", ".zst", ".csv", ".parquet"}) {
    if (text.ends_with(ending)) return true;
  }
  return std::filesystem::exists(text, ignored);
}

/// Sets a key with the origin of a fact.
void set_from(Draft& draft, std::string_view key, const std::string& text, const Draft::Given& fact) {
  draft.from(fact.origin, fact.is_default);
  draft.set_text(key, text);
}

void resolve_task(Draft& draft) {
  const Draft::Given* const fact = draft.fact("task");
  const std::string task = fact ? fact->text : "pretrain";
  draft.from(fact ? fact->origin : "the kind of the settings", true);
  const bool preference_loss = task == "kto" || task == "orpo" || task == "simpo" || task == "cpo";
  if (preference_loss) draft.set_text("dpo.loss", task);
  if (task == "rloo") draft.replace("grpo.loss", "rloo");
  draft.set_text("run.task", preference_loss ? "dpo" : task == "rloo" ? "grpo" : task);
}

void resolve_model(Draft& draft) {
  const Draft::Given* const model = draft.fact("model");
  const bool new_model = draft.is_fact("new_weights", "true") || (!model && draft.has("model.d_model"));
  if (model && !new_model) {
    set_from(draft, "model.path", model->text, *model);
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

bool any_in(const Draft& draft, std::string_view section) {
  return std::ranges::any_of(draft.values(), [&](const auto& entry) { return entry.first.starts_with(section); });
}

void resolve_finetuning(Draft& draft) {
  const Draft::Given* const fact = draft.fact("finetuning");
  std::string kind = fact ? fact->text : any_in(draft, "lora.") || draft.has("quantization.bits") ? "lora" : "full";
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

void resolve_data(Draft& draft) {
  const auto place = [&draft](std::string_view fact_name, std::string_view key, const std::string& what) {
    const Draft::Given* const fact = draft.fact(fact_name);
    if (fact && names_file(fact->text)) return set_from(draft, key, fact->text, *fact);
    if (draft.has(key)) return;
    if (fact) draft.need(key, fmt::format("files with the rows of the data set {}, as JSON lines", fact->text));
    if (!fact && !what.empty()) draft.need(key, what);
  };
  place("dataset", "data.train", "files of training data");
  place("validation_data", "data.validation", "");
  const bool evaluates =
      draft.fact("validation_data") || draft.has("data.validation_fraction") || draft.has("data.validation");
  const bool measures = draft.fact("eval_strategy") && !draft.is_fact("eval_strategy", "no");
  if (!evaluates && !measures && draft.is_fact("eval_strategy", "no")) {
    draft.from("no validation data: all rows are trained on", true);
    draft.set_text("data.validation_fraction", "0");
  }
  if (!draft.has("batch.sequence_length")) {
    if (const Draft::Given* const length = draft.find("model.max_seq_len")) {
      set_from(draft, "batch.sequence_length", length->text, *length);
    } else {
      draft.need("batch.sequence_length", "tokens of a sample");
    }
  }
}

void resolve_batch(Draft& draft) {
  const int64_t world = draft.ranks() > 0 ? draft.ranks() : draft.fact_count("world").value_or(1);
  const std::optional<int64_t> given_micro = draft.fact_count("micro");
  const std::optional<int64_t> accumulation = draft.fact_count("accumulation");
  std::optional<int64_t> global = draft.fact_count("global");
  const int64_t passes = std::max<int64_t>(accumulation.value_or(1), 1) * std::max<int64_t>(world, 1);
  if (!given_micro && !global && !accumulation) return;
  const int64_t micro = given_micro ? *given_micro : global ? std::max<int64_t>(*global / passes, 1) : 1;
  if (!global || given_micro) {
    const int64_t product = micro * passes;
    if (global && *global != product) {
      draft.remark(
          fmt::format("The batch of {} is not {} sequences x {} passes x {} GPUs = {}: batch.global is the former.",
                      *global, micro, accumulation.value_or(1), world, product));
    }
    global = global.value_or(product);
  }
  draft.from(fmt::format("sequences of a GPU, {}", draft.fact("micro") ? draft.fact("micro")->origin : "by the whole"),
             false);
  draft.set_text("batch.micro", std::to_string(micro));
  draft.from(
      fmt::format("{} sequences x {} passes x {} GPU{}", micro, accumulation.value_or(1), world, world == 1 ? "" : "s"),
      false);
  draft.set_text("batch.global", std::to_string(*global));
  if (world == 1 && !draft.fact("world") && draft.ranks() == 0) {
    draft.remark("batch.global is that of one GPU: convert with --ranks N for a job of N GPUs.");
  }
}

void resolve_length(Draft& draft) {
  const Draft::Given* const steps = draft.fact("max_steps");
  const Draft::Given* const epochs = draft.fact("epochs");
  if (steps && draft.fact_count("max_steps").value_or(0) > 0) {
    set_from(draft, "run.max_steps", std::to_string(*draft.fact_count("max_steps")), *steps);
  } else if (epochs) {
    set_from(draft, "run.epochs", print_number(draft.fact_number("epochs").value_or(1)), *epochs);
  } else if (!draft.has("run.max_steps") && !draft.has("run.epochs")) {
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

void resolve_schedule(Draft& draft) {
  const double steps = draft.fact_number("warmup_steps").value_or(0);
  const double ratio = draft.fact_number("warmup_ratio").value_or(0);
  if (steps >= 1) {
    set_from(draft, "schedule.warmup_steps", fmt::format("{}", static_cast<int64_t>(steps)),
             *draft.fact("warmup_steps"));
  } else if (steps > 0) {
    set_from(draft, "schedule.warmup_ratio", print_number(steps), *draft.fact("warmup_steps"));
  } else if (ratio > 0) {
    set_from(draft, "schedule.warmup_ratio", print_number(ratio), *draft.fact("warmup_ratio"));
  }
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
  if (is_true("bf16")) return set("bf16", "bf16");
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
  const std::string kind = strategy ? strategy->text : "steps";
  if (kind == "no") return set_from(draft, section + ".every_steps", "0", *strategy);
  if (kind == "epoch" && section == "log") return;  // a line for each interval of steps, as ever
  if (kind == "epoch") return set_from(draft, section + ".every_epochs", "1", *strategy);
  const std::optional<double> value = draft.fact_number(steps_name);
  if (!value || *value < 0) return;
  if (const auto steps = interval(draft, *value); steps || *value == 0) {
    return set_from(draft, section + ".every_steps", std::to_string(steps.value_or(0)), *given);
  }
  if (section != "log") {  // a fraction of a run of unknown length
    set_from(draft, section + ".every_epochs", print_number(*value * draft.number("run.epochs", 1)), *given);
  }
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
    set_from(draft, "run.output", parent.empty() ? "." : parent.string(), *folder);
    if (!leaf.empty() && leaf != "." && leaf != "..") set_from(draft, "run.name", leaf.string(), *folder);
  } else if (name) {
    set_from(draft, "run.name", name->text, *name);
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
  if (wandb && name) set_from(draft, "wandb.name", name->text, *name);
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
  resolve_curriculum(draft);
  remove_unused(draft);
}

}  // namespace llmtrain::convert
