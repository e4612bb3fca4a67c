#!/usr/bin/env python3
"""sft_outcome.py LLMTRAIN LLMTOOL DATA [--python PYTHON] [--steps N]: what instruction tuning does to a small base model.

Pre-trains a base on DATA/text/novels, tunes it on DATA/sft/alpaca.jsonl with llmtrain and with TRL's SFTTrainer (same
model, rows, order and settings, fp32), and prints the loss over held-out completions before and after, as one evaluator
measures it for both, seconds a step, and answers before and after. PYTHON is an interpreter with torch, transformers,
trl and datasets; without it only llmtrain runs. Some ten minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

DECK = """[run]
task = sft
[batch]
sequence_length = 384
micro = 4
global = 16
[optimizer]
weight_decay = 0
[schedule]
learning_rate = 5e-4
[precision]
compute = fp32
[data]
validation_fraction = 0
shuffle = false
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
export = last
"""
BASE = """[run]
max_steps = 400
[model]
family = llama
d_model = 192
n_layers = 4
n_heads = 4
max_seq_len = 512
[data]
tokenizer = bpe
vocab_size = 4096
validation_fraction = 0.01
[batch]
sequence_length = 256
micro = 8
global = 16
[schedule]
name = cosine
learning_rate = 2e-3
warmup_steps = 40
[evaluation]
every_steps = 0
[checkpoint]
every_steps = 0
at_end = false
export = last
"""
TRL = """
import json, sys, time, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
base, rows, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
tokenizer = AutoTokenizer.from_pretrained(base)
if tokenizer.pad_token is None: tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
settings = SFTConfig(output_dir=output, max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=4, learning_rate=5e-4,
                     lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, report_to=[], save_strategy="no",
                     train_sampling_strategy="sequential", use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=384,
                     packing=False, shuffle_dataset=False, disable_tqdm=True, logging_steps=10**6, optim="adamw_torch")
trainer = SFTTrainer(model=model, args=settings, train_dataset=Dataset.from_list([json.loads(l) for l in open(rows)]), processing_class=tokenizer)
begin = time.perf_counter()
trainer.train()
print("SECONDS", time.perf_counter() - begin)
trainer.save_model(output)
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
            file.write(json.dumps({"prompt": f"### Instruction:\n{question}\n\n### Response:\n", "completion": row["output"]}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("llmtool"), parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--python"), parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sft_outcome."))
    rows = [json.loads(line) for line in open(options.data / "sft/alpaca.jsonl", encoding="utf-8")]
    rows = [row for row in rows if len(row["instruction"] + row["input"] + row["output"]) < 900]
    write_rows(folder / "train.jsonl", rows[:-400])
    write_rows(folder / "held_out.jsonl", rows[-400:])
    (folder / "base.ini").write_text(BASE)
    (folder / "sft.ini").write_text(DECK)
    run(options.llmtrain, folder / "base.ini", f"run.output={folder}", f"data.train={options.data}/text/novels/train.txt")
    base = folder / "base/export"

    models = {"base": base}
    begin = time.perf_counter()
    run(options.llmtrain, folder / "sft.ini", f"run.output={folder}", f"model.path={base}", f"data.train={folder}/train.jsonl",
        f"run.max_steps={options.steps}")
    seconds = {"llmtrain": time.perf_counter() - begin}
    models["llmtrain"] = folder / "sft/export"
    if options.python:
        text = run(options.python, "-c", TRL, base, folder / "train.jsonl", options.steps, folder / "trl")
        seconds["TRL"] = float(text.split("SECONDS")[1].split()[0])
        models["TRL"] = folder / "trl"
    print(f"{'model':<10} {'held-out completion loss':>25} {'s/step':>8}")
    for name, model in models.items():
        run(options.llmtrain, folder / "sft.ini", "run.task=evaluate", f"run.name=evaluate-{name}", f"run.output={folder}",
            f"model.path={model}", f"data.validation={folder}/held_out.jsonl")
        loss = json.loads((folder / f"evaluate-{name}/evaluation.json").read_text())["loss"]
        speed = f"{seconds[name] / options.steps:8.2f}" if name in seconds else ""
        print(f"{name:<10} {loss:>25.4f} {speed}")
    for row in [json.loads(line) for line in open(folder / "held_out.jsonl", encoding="utf-8")][:3]:
        print("\n" + row["prompt"].strip())
        for name, model in models.items():
            answer = run(options.llmtool, "generate", "--model", model, "--prompt", row["prompt"], "--max-new-tokens", "40", "--greedy")
            print(f"  {name}: {' '.join(answer.split())}")


if __name__ == "__main__":
    main()
