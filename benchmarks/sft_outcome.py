#!/usr/bin/env python3
"""sft_outcome.py LLMTRAIN LLMTOOL DATA [--python PYTHON] [--steps N]: what instruction tuning does to a small base model.

Pre-trains a base on DATA/text/novels, tunes it on DATA/sft/alpaca.jsonl with llmtrain, all of it and by LoRA of rank 8, and
with TRL's SFTTrainer (same model, rows, order and settings, fp32), and prints the loss over held-out completions before
and after, as one evaluator measures it for all, seconds a step, peak memory, the size of a checkpoint, and answers before and
after. PYTHON is an interpreter with torch, transformers,
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
    """Returns the output; run.peak is then the peak of resident memory in MiB."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, text=True)
        _, status, usage = os.wait4(child.pid, 0)
        log.seek(0)
        text = log.read()
    if status != 0:
        raise SystemExit(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-3000:]}")
    run.peak = usage.ru_maxrss / 1024
    return text


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
            file.write(json.dumps({"prompt": f"### Instruction:\n{question}\n\n### Response:\n", "completion": row["output"]}) + "\n")


def prepare(data):
    """Returns a folder with train.jsonl, held_out.jsonl, and the decks base.ini and sft.ini."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sft."))
    rows = [json.loads(line) for line in open(data / "sft/alpaca.jsonl", encoding="utf-8")]
    rows = [row for row in rows if len(row["instruction"] + row["input"] + row["output"]) < 900]
    write_rows(folder / "train.jsonl", rows[:-400])
    write_rows(folder / "held_out.jsonl", rows[-400:])
    (folder / "base.ini").write_text(BASE)
    (folder / "sft.ini").write_text(DECK)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("llmtool"), parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--python"), parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = prepare(options.data)
    run(options.llmtrain, folder / "base.ini", f"run.output={folder}", f"data.train={options.data}/text/novels/train.txt")
    base = folder / "base/export"

    models = {"base": base}
    seconds, peaks, sizes = {}, {}, {}
    lora = ["run.finetuning=lora", "lora.r=8", "lora.alpha=16", "schedule.learning_rate=5e-3", "checkpoint.export_merged=true"]
    for name, keys in {"llmtrain": [], "LoRA r=8": lora}.items():
        output = folder / name.split()[0]
        begin = time.perf_counter()
        run(options.llmtrain, folder / "sft.ini", f"run.output={folder}", f"run.name={output.name}", f"model.path={base}",
            f"data.train={folder}/train.jsonl", f"run.max_steps={options.steps}", "checkpoint.at_end=true", *keys)
        seconds[name], peaks[name] = time.perf_counter() - begin, run.peak
        sizes[name] = sum(file.stat().st_size for file in (output / "checkpoints").rglob("shard-*.h5") if not file.parent.is_symlink()) / 2**20
        models[name] = output / "export"
    if options.python:
        text = run(options.python, "-c", TRL, base, folder / "train.jsonl", options.steps, folder / "trl")
        seconds["TRL"], peaks["TRL"] = float(text.split("SECONDS")[1].split()[0]), run.peak
        models["TRL"] = folder / "trl"
    print(f"{'model':<10} {'held-out completion loss':>25} {'s/step':>8} {'peak MiB':>9} {'checkpoint MiB':>15}")
    for name, model in models.items():
        run(options.llmtrain, folder / "sft.ini", "run.task=evaluate", f"run.name=evaluate-{name.split()[0]}", f"run.output={folder}",
            f"model.path={model}", f"data.validation={folder}/held_out.jsonl")
        loss = json.loads((folder / f"evaluate-{name.split()[0]}/evaluation.json").read_text())["loss"]
        costs = f"{seconds[name] / options.steps:8.2f} {peaks[name]:9.0f}" if name in seconds else ""
        costs += f" {sizes[name]:15.1f}" if name in sizes else ""
        print(f"{name:<10} {loss:>25.4f} {costs}")
    for row in [json.loads(line) for line in open(folder / "held_out.jsonl", encoding="utf-8")][:3]:
        print("\n" + row["prompt"].strip())
        for name, model in models.items():
            answer = run(options.llmtool, "generate", "--model", model, "--prompt", row["prompt"], "--max-new-tokens", "40", "--greedy")
            print(f"  {name}: {' '.join(answer.split())}")


if __name__ == "__main__":
    main()
