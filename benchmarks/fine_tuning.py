#!/usr/bin/env python3
"""fine_tuning.py LLMTRAIN DATA PYTHON [--rounds N] [--steps N] [--cases A,B]: seconds a step and peak memory of fine-tuning.

A model of Llama's shape with some 300 million random weights is tuned on rows of DATA/sft/alpaca.jsonl, context 512, by llmtrain
and by TRL with PEFT (PYTHON has torch, transformers, trl, peft and datasets), in bf16 where this processor multiplies bf16, else in
fp32. Cases run in turn, each in every round; the table has medians, and first losses, which must agree. compiled: torch.compile.
Some forty minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

CASES = {  # name: keys of llmtrain, settings of TRL
    "pre-training": (["run.task=pretrain", "data.packing=wrap"], None),
    "sft packed": (["data.packing=best_fit"], None),
    "sft": (["data.packing=none"], {}),
    "lora r=16": (["data.packing=none", "run.finetuning=lora", "lora.r=16", "lora.alpha=32"], {"lora": True}),
    "lora r=16 compiled": (None, {"lora": True, "compiled": True}),
}
DECK = """[run]
task = sft
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
MODEL = """
import sys, torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
torch.manual_seed(0)
config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=1024, intermediate_size=2816, num_hidden_layers=18, num_attention_heads=16,
                     num_key_value_heads=16, max_position_embeddings=512, bos_token_id=tokenizer.bos_token_id,
                     eos_token_id=tokenizer.eos_token_id, attention_dropout=0.0)
LlamaForCausalLM(config).save_pretrained(sys.argv[2])
tokenizer.save_pretrained(sys.argv[2])
"""
TRL = """
import json, sys, time, torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer
base, rows, steps, output, bf16 = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "bf16"
case = json.loads(sys.argv[6])
tokenizer = AutoTokenizer.from_pretrained(base)
if tokenizer.pad_token is None: tokenizer.pad_token = tokenizer.eos_token
class Clock(TrainerCallback):
    seconds, losses = [], []
    def on_step_begin(self, *a, **k): self.begin = time.perf_counter()
    def on_step_end(self, *a, **k): self.seconds.append(time.perf_counter() - self.begin)
    def on_log(self, args, state, control, logs=None, **k):
        if "loss" in logs: self.losses.append(float(logs["loss"]))
clock = Clock()
settings = SFTConfig(output_dir=output, max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-4,
                     lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, report_to=[], save_strategy="no", use_cpu=True,
                     train_sampling_strategy="sequential", bf16=bf16, gradient_checkpointing=False, max_length=512, packing=False,
                     shuffle_dataset=False, disable_tqdm=True, logging_steps=1, optim="adamw_torch", torch_compile=case.get("compiled", False))
adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM") if case.get("lora") else None
trainer = SFTTrainer(model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), args=settings, processing_class=tokenizer,
                     train_dataset=Dataset.from_list([json.loads(line) for line in open(rows)]), peft_config=adapter, callbacks=[clock])
trainer.train()
print("RESULT", json.dumps({"seconds": clock.seconds, "loss": clock.losses[0]}))
"""


def run(*command):
    """Returns the output, and the peak of resident memory in GiB."""
    log = tempfile.NamedTemporaryFile("w+")
    child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, text=True)
    _, status, usage = os.wait4(child.pid, 0)
    text = pathlib.Path(log.name).read_text(encoding="utf-8", errors="replace")
    if status != 0:
        raise SystemExit(f"{command[0]} ended with {status}:\n{text[-3000:]}")
    return text, usage.ru_maxrss / 2**20


def write_rows(path, data, count):
    with open(path, "w", encoding="utf-8") as file:
        for line in open(data / "sft/alpaca.jsonl", encoding="utf-8"):
            row = json.loads(line)
            question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
            if count == 0 or len(question + row["output"]) > 1200:
                continue
            count -= 1
            file.write(json.dumps({"prompt": f"### Instruction:\n{question}\n\n### Response:\n", "completion": row["output"]}) + "\n")


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.base = options, folder, folder / "base"
        self.bf16 = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text() or "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()
        run(options.python, "-c", MODEL, options.data / "tokenizer" / options.tokenizer, self.base)
        write_rows(folder / "rows.jsonl", options.data, 400)
        (folder / "deck.ini").write_text(DECK)

    def llmtrain(self, keys):
        name = "run"
        command = [self.options.llmtrain, self.folder / "deck.ini", f"run.output={self.folder}", f"run.name={name}", "run.overwrite=true",
                   f"run.max_steps={self.options.steps}", f"model.path={self.base}", f"precision.compute={'bf16' if self.bf16 else 'fp32'}"]
        corpus = self.options.data / "text/novels/train.txt" if "run.task=pretrain" in keys else self.folder / "rows.jsonl"
        command += [f"data.train={corpus}", *keys]
        planned = json.loads(subprocess.run([str(part) for part in [*command, "--estimate", "--json"]], capture_output=True, text=True).stdout)
        _, memory = run(*command)
        lines = [json.loads(line) for line in open(self.folder / name / "metrics.jsonl", encoding="utf-8")]
        lines = [line for line in lines if "loss" in line and "grad_norm" in line]
        seconds = [b["wall_time"] - a["wall_time"] for a, b in zip(lines, lines[1:])]
        tokens = [line["tokens"] for line in lines]
        return {"seconds": statistics.median(seconds), "loss": lines[0]["loss"], "memory": memory, "tokens": tokens,
                "planned": planned["bytes_per_rank"]["total"] / 2**30,
                "rate": statistics.median(line["tokens_per_second"] for line in lines[1:])}

    def trl(self, settings):
        text, memory = run(self.options.python, "-c", TRL, self.base, self.folder / "rows.jsonl", self.options.steps, self.folder / "trl",
                           "bf16" if self.bf16 else "fp32", json.dumps(settings))
        result = json.loads(text.split("RESULT", 1)[1].splitlines()[0])
        return {"seconds": statistics.median(result["seconds"][1:]), "loss": result["loss"], "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("data", type=pathlib.Path), parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3), parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokenizer", default="llama2"), parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    bench = Bench(options, pathlib.Path(tempfile.mkdtemp(prefix="fine_tuning.")))
    results = {}
    for _ in range(options.rounds):
        for name in options.cases.split(","):
            keys, settings = CASES[name]
            if keys is not None:
                results.setdefault((name, "llmtrain"), []).append(bench.llmtrain(keys))
            if settings is not None:
                results.setdefault((name, "TRL"), []).append(bench.trl(settings))
    print(f"{'case':<22} {'program':<9} {'s/step':>8} {'tokens/s':>9} {'peak GiB':>9} {'planned':>8} {'first loss':>11}")
    for (name, program), rounds in results.items():
        median = {key: statistics.median(r[key] for r in rounds) for key in ("seconds", "memory", "loss")}
        rate = f"{statistics.median(r['rate'] for r in rounds):9.0f}" if "rate" in rounds[0] else " " * 9
        planned = f"{rounds[0]['planned']:8.2f}" if "planned" in rounds[0] else " " * 8
        print(f"{name:<22} {program:<9} {median['seconds']:8.2f} {rate} {median['memory']:9.2f} {planned} {median['loss']:11.5f}")


if __name__ == "__main__":
    main()
