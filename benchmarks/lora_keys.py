#!/usr/bin/env python3
"""lora_keys.py LLMTRAIN DATA [--steps N] [--base-steps N]: what each key of [lora] costs and brings.

Pre-trains a small base on DATA/text/novels, then tunes it on DATA/sft/alpaca.jsonl once for each line of CASES, all with the same rows
and order, and prints the trained parameters, the size of the adapter, the peak of memory, the median seconds of a step, and the loss
over held-out completions. Some twenty minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import re
import statistics

from peer_rounds import checked
from sft_outcome import prepare

CASES = {
    "r = 8, alpha = 16": "",
    "r = 2, alpha = 4": "r=2 alpha=4",
    "r = 64, alpha = 128": "r=64 alpha=128",
    "r = 64, alpha = 16": "r=64",
    "r = 64, alpha = 16, rslora": "r=64 rslora=true",
    "target_modules = q_proj, v_proj": "target_modules=q_proj,v_proj",
    "layers_to_transform = 2, 3": "layers_to_transform=2,3",
    "dropout = 0.1": "dropout=0.1",
    "dora": "dora=true",
    "a fifth of the learning rate": "rate=1e-3",
    "the same, learning_rate_ratio = 16": "rate=1e-3 learning_rate_ratio=16",
    "modules_to_save = embed_tokens, lm_head": "modules_to_save=embed_tokens,lm_head",
}


def keys_of(case):
    """Returns the command line's keys of a case, which has those of [lora] that differ."""
    lora = {"r": "8", "alpha": "16", "rate": "5e-3"} | dict(key.split("=") for key in case.split())
    rate = lora.pop("rate")
    return ["run.finetuning=lora", f"schedule.learning_rate={rate}", *(f"lora.{key}={value}" for key, value in lora.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100), parser.add_argument("--base-steps", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = prepare(options.data)
    checked([options.llmtrain, folder / "base.ini", f"run.output={folder}", f"data.train={options.data}/text/novels/train.txt",
             f"run.max_steps={options.base_steps}"])
    deck = [options.llmtrain, folder / "sft.ini", f"run.output={folder}", f"model.path={folder}/base/export", "run.name=case", "run.overwrite=true",
            f"data.train={folder}/train.jsonl", f"data.validation={folder}/held_out.jsonl", "data.validation_fraction=0",
            f"run.max_steps={options.steps}", "checkpoint.export=none", "evaluation.at_end=true", "log.every_steps=1"]
    print(f"{'case':<46} {'trained':>9} {'adapter MiB':>12} {'peak MiB':>9} {'s/step':>7} {'loss':>7}")
    for name, keys in {"full tuning": [], **{name: keys_of(case) for name, case in CASES.items()}}.items():
        peak = checked([*deck, *keys])["peak"] / 2**20
        lines = [json.loads(line) for line in open(folder / "case/metrics.jsonl", encoding="utf-8")]
        seconds = statistics.median(line["seconds"]["step"] for line in lines if "grad_norm" in line)
        loss = [line["validation_loss"] for line in lines if "validation_loss" in line][-1]
        adapter = folder / "case/adapter/adapter_model.safetensors"
        size = f"{adapter.stat().st_size / 2**20:12.2f}" if adapter.exists() else " " * 12
        model = re.search(r"([0-9,]+) parameters(?:, ([0-9,]+) of them trained)?", (folder / "case/log.txt").read_text())
        trained = model.group(2) or model.group(1)
        print(f"{name:<46} {trained:>9} {size} {peak:9.0f} {seconds:7.3f} {loss:7.4f}", flush=True)


if __name__ == "__main__":
    main()
