#!/usr/bin/env python3
"""preferences.py LLMTRAIN DATA PYTHON [--rounds N] [--steps N] [--layers N] [--outcome-steps N] [--cases A,B]: learning from preferences and rewards
beside TRL and Transformers, on the same model, rows and settings.

Speed, cases in turn, each in every round; the table has medians: seconds a step and peak memory of DPO (the reference cached by
llmtrain, a second model in TRL) and of DPO with LoRA, 8 pairs of DATA/dpo/hh_helpful.jsonl a step, two micro-batches; seconds a step of GRPO,
rollout and update, 4 prompts with 8 completions of 128 tokens; and tokens a second of rollouts, 32 completions of 128 tokens, beside
Transformers' generate. A model of Llama's shape with random weights
(hidden size 1024), in bf16 where this processor multiplies bf16, else in fp32.
Outcome (case hh): accuracy of a reward model and margins of DPO on the last 200 of the helpful pairs below 1,200 characters, a model of 4 layers and
256 channels trained from random weights, fp32.
PYTHON has torch, transformers, trl, peft and datasets.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

from fine_tuning import MODEL, run

DECK = """[run]
task = dpo
[data]
validation_fraction = 0
shuffle = false
[batch]
sequence_length = 512
micro = 4
global = 8
[optimizer]
weight_decay = 0
[schedule]
name = constant
warmup_ratio = 0
learning_rate = 1e-4
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
"""
TRAINER = """
import json, sys, time, torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer
case = json.loads(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(case["base"])
if tokenizer.pad_token is None: tokenizer.pad_token = tokenizer.eos_token
class Clock(TrainerCallback):
    seconds, losses = [], []
    def on_step_begin(self, *a, **k): self.begin = time.perf_counter()
    def on_step_end(self, *a, **k): self.seconds.append(time.perf_counter() - self.begin)
    def on_log(self, args, state, control, logs=None, **k):
        if "loss" in logs: self.losses.append(float(logs["loss"]))
clock = Clock()
read = lambda path: Dataset.from_list([json.loads(line) for line in open(path)])
if case["task"] == "grpo":
    settings = GRPOConfig(
        output_dir=case["output"], max_steps=case["steps"], per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8,
        generation_batch_size=32, max_completion_length=128, learning_rate=1e-6, lr_scheduler_type="constant", weight_decay=0.0, report_to=[],
        save_strategy="no", use_cpu=True, bf16=case["bf16"], gradient_checkpointing=False, disable_tqdm=True, logging_steps=1, optim="adamw_torch",
        model_init_kwargs={"dtype": "bfloat16" if case["bf16"] else "float32"})
    lengths = lambda completions, **k: [-abs(len(text) - 64.0) for text in completions]
    GRPOTrainer(model=case["base"], args=settings, reward_funcs=lengths, processing_class=tokenizer, train_dataset=read(case["rows"]), callbacks=[clock]).train()
    print("RESULT", json.dumps({"seconds": clock.seconds}))
    sys.exit()
reward = case["task"] == "reward"
settings = (RewardConfig if reward else DPOConfig)(
    output_dir=case["output"], max_steps=case["steps"], per_device_train_batch_size=4, gradient_accumulation_steps=case["global"] // 4,
    learning_rate=1e-4, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, report_to=[], save_strategy="no", use_cpu=True,
    train_sampling_strategy="sequential", bf16=case["bf16"], gradient_checkpointing=False, max_length=512, disable_tqdm=True,
    logging_steps=1, optim="adamw_torch", per_device_eval_batch_size=4)
adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM") if case.get("lora") else None
kind = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
model = kind.from_pretrained(case["base"], dtype=torch.float32, **({"num_labels": 1} if reward else {}))
if reward: model.config.pad_token_id = tokenizer.pad_token_id
held = read(case["held"]) if "held" in case else None
trainer = (RewardTrainer if reward else DPOTrainer)(model=model, args=settings, processing_class=tokenizer, train_dataset=read(case["rows"]),
                                                    eval_dataset=held, peft_config=adapter, callbacks=[clock])
trainer.train()
print("RESULT", json.dumps({"seconds": clock.seconds, "loss": clock.losses[0], "held": trainer.evaluate() if held else {}}))
"""
GENERATE = """
import sys, time, json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
base, prompts, dtype = sys.argv[1], [json.loads(line)["prompt"] for line in open(sys.argv[2])], sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
if tokenizer.pad_token is None: tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
inputs = tokenizer(prompts, return_tensors="pt", padding=True)
with torch.inference_mode():
    for new in (4, 128):
        begin = time.perf_counter()
        model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new, pad_token_id=tokenizer.pad_token_id)
        seconds = time.perf_counter() - begin
print("RESULT", len(prompts) * 128 / seconds)
"""


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        processor = pathlib.Path("/proc/cpuinfo").read_text()
        self.compute = "bf16" if "amx_bf16" in processor or "avx512_bf16" in processor else "fp32"
        (folder / "deck.ini").write_text(DECK)
        self.pairs = [json.loads(line) for line in open(options.data / "dpo/hh_helpful.jsonl", encoding="utf-8")]
        short = [pair for pair in self.pairs if max(len(pair["prompt"] + pair[key]) for key in ("chosen", "rejected")) < 1500]
        self.rows = self.write("rows.jsonl", short[:400])

    def write(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def base(self, name, layers, width=1024):
        model = MODEL.replace("num_hidden_layers=18", f"num_hidden_layers={layers}").replace("hidden_size=1024", f"hidden_size={width}")
        model = model.replace("intermediate_size=2816", f"intermediate_size={width * 11 // 4}")
        run(self.options.python, "-c", model.replace("heads=16", f"heads={width // 64}"), self.options.data / "tokenizer/llama2", self.folder / name)
        return self.folder / name

    def llmtrain(self, base, *keys, compute=None):
        text, memory = run(self.options.llmtrain, self.folder / "deck.ini", f"run.output={self.folder}", "run.name=run", "run.overwrite=true",
                           f"model.path={base}", f"precision.compute={compute or self.compute}", *keys)
        lines = [json.loads(line) for line in open(self.folder / "run/metrics.jsonl", encoding="utf-8")]
        return text, memory, lines

    def trl(self, **case):
        text, memory = run(self.options.python, "-c", TRAINER, json.dumps({"output": str(self.folder / "trl"), **case}))
        return json.loads(text.split("RESULT", 1)[1].splitlines()[0]), memory

    def dpo(self, base, lora):
        keys = ["run.finetuning=lora", "lora.r=16", "lora.alpha=32"] if lora else []
        _, memory, lines = self.llmtrain(base, f"data.train={self.rows}", f"run.max_steps={self.options.steps}", "dpo.cache_reference=true", *keys)
        lines = [line for line in lines if "grad_norm" in line]
        seconds = statistics.median(b["wall_time"] - a["wall_time"] for a, b in zip(lines, lines[1:]))
        result, peak = self.trl(task="dpo", base=str(base), rows=str(self.rows), steps=self.options.steps, bf16=self.compute == "bf16", lora=lora,
                                **{"global": 8})
        return (seconds, memory), (statistics.median(result["seconds"][1:]), peak)

    def grpo(self, base):
        prompts = self.write("grpo.jsonl", [{"prompt": pair["prompt"]} for pair in self.pairs if len(pair["prompt"]) < 1000][:32])
        _, memory, lines = self.llmtrain(base, "run.task=grpo", f"data.train={prompts}", f"run.max_steps={self.options.steps}", "batch.micro=8",
                                         "batch.global=32", "grpo.group_size=8", "rollout.max_new_tokens=128", "rewards.functions=length:64")
        lines = [line for line in lines if "grad_norm" in line]
        seconds = statistics.median(b["wall_time"] - a["wall_time"] for a, b in zip(lines, lines[1:]))
        result, peak = self.trl(task="grpo", base=str(base), rows=str(prompts), steps=self.options.steps, bf16=self.compute == "bf16")
        return (seconds, memory), (statistics.median(result["seconds"][1:]), peak)

    def rollouts(self, base):
        prompts = self.write("prompts.jsonl", [{"prompt": pair["prompt"]} for pair in self.pairs if len(pair["prompt"]) < 1000][:32])
        text, memory, _ = self.llmtrain(base, "run.task=grpo", f"data.train={prompts}", "run.max_steps=1", "batch.micro=8", "batch.global=32",
                                        "grpo.group_size=2", "rollout.max_new_tokens=128", "rewards.functions=length:64")
        rate = float(re.search(r"([\d.e+]+) tokens/s\)", text).group(1))
        text, peak = run(self.options.python, "-c", GENERATE, base, prompts, self.compute)
        return (rate, memory), (float(text.split("RESULT", 1)[1].split()[0]), peak)

    def outcome(self):
        base = self.base("small", 4, 256)
        short = [pair for pair in self.pairs if max(len(pair["prompt"] + pair[key]) for key in ("chosen", "rejected")) < 1200]  # TRL drops longer ones
        rows, held = self.write("train.jsonl", short[:-200]), self.write("held.jsonl", short[-200:])
        for task in ("reward", "dpo"):
            _, _, lines = self.llmtrain(base, f"run.task={task}", f"data.train={rows}", f"data.validation={held}", "batch.global=16", "batch.micro=8",
                                        f"run.max_steps={self.options.outcome_steps}", "evaluation.at_end=true", "evaluation.batches=0", compute="fp32")
            own = next(line for line in reversed(lines) if any("validation" in key for key in line))
            peer, _ = self.trl(task=task, base=str(base), rows=str(rows), held=str(held), steps=self.options.outcome_steps, bf16=False, **{"global": 16})
            print(f"{task}, held-out pairs\n  llmtrain {json.dumps(own)}\n  TRL      {json.dumps(peer['held'])}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("data", type=pathlib.Path), parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3), parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6), parser.add_argument("--outcome-steps", type=int, default=200)
    parser.add_argument("--cases", default="dpo,dpo lora,grpo,rollouts,hh")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    bench = Bench(options, pathlib.Path(tempfile.mkdtemp(prefix="preferences.")))
    base = bench.base("base", options.layers)
    measure = {"dpo": lambda: bench.dpo(base, False), "dpo lora": lambda: bench.dpo(base, True), "grpo": lambda: bench.grpo(base), "rollouts": lambda: bench.rollouts(base)}
    cases = options.cases.split(",")
    rounds = {case: [] for case in cases if case in measure}
    for _ in range(options.rounds):
        for case, results in rounds.items():
            results.append(measure[case]())
    for case, results in rounds.items():
        unit = "tokens/s" if case == "rollouts" else "s a step"
        own, peer = ([statistics.median(result[who][at] for result in results) for at in (0, 1)] for who in (0, 1))
        faster = own[0] / peer[0] if case == "rollouts" else peer[0] / own[0]
        print(f"{case:<10} {own[0]:9.3f} beside {peer[0]:9.3f} {unit}: {faster:.2f} times as fast; "
              f"peak {own[1]:.2f} beside {peer[1]:.2f} GiB: {own[1] / peer[1]:.2f}", flush=True)
    if "hh" in cases:
        bench.outcome()


if __name__ == "__main__":
    main()
