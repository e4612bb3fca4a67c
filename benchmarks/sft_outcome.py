#!/usr/bin/env python3
"""sft_outcome.py LLMTRAIN LLMTOOL DATA [--python PYTHON] [--peer A,B] [--steps N] [--busy]: what instruction tuning does to
a small base model.

Pre-trains a base on DATA/text/novels, tunes it on DATA/sft/alpaca.jsonl with llmtrain, all of it and by LoRA of rank 8, and
with TRL's SFTTrainer (same model, rows, order and settings, fp32): its default, padded, eager and with the C library's
malloc, and the settings of --peer (peers/tune.py). Prints the loss over held-out completions before and after, as one
evaluator measures it for all, seconds a step with start and tokenization, peak memory, the size of a checkpoint, and answers
before and after. The losses of TRL's models must be llmtrain's, and the machine quiet. PYTHON is an interpreter with torch,
transformers, trl and datasets; without it only llmtrain runs. Some ten minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

from fine_tuning import PEER, write_rows
from peer_rounds import best_environment, checked, expect_quiet, say_busy

BOUND = 2e-3  # limit of the distance of two held-out losses, relative
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
    parser.add_argument("--base-steps", type=int, default=400), parser.add_argument("--peer", default="fp32,free+fp32,free+compile+fp32")
    parser.add_argument("--option", action="append", default=[], metavar="section.key=value", help="of llmtrain's full tuning")
    parser.add_argument("--busy", action="store_true", help="measure although other processes run")
    options = parser.parse_args()
    if options.busy:
        say_busy()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = prepare(options.data)
    checked([options.llmtrain, folder / "base.ini", f"run.output={folder}", f"data.train={options.data}/text/novels/train.txt",
             f"run.max_steps={options.base_steps}"])
    base = folder / "base/export"

    def own(name, *keys):
        output = folder / name.split()[0]
        process = checked([options.llmtrain, folder / "sft.ini", f"run.output={folder}", f"run.name={output.name}", f"model.path={base}",
                           f"data.train={folder}/train.jsonl", f"run.max_steps={options.steps}", "checkpoint.at_end=true", *keys])
        size = sum(file.stat().st_size for file in (output / "checkpoints").rglob("shard-*.h5") if not file.parent.is_symlink())
        return dict(process, model=output / "export", checkpoint=size / 2**20)

    def trl(name, peer):
        output = folder / name.replace(" ", "-")
        case = dict(base=str(base), rows=f"{folder}/train.jsonl", result=f"{output}.json", save=str(output), peer=peer, steps=options.steps,
                    micro=4, accumulate=4, rate=5e-4, length=384)
        process = checked([options.python, PEER, "sft", json.dumps(case)], None if name == "TRL default" else best_environment())
        return dict(process, model=output, settings=json.loads((folder / f"{output.name}.json").read_text())["settings"])

    lora = ["run.finetuning=lora", "lora.r=8", "lora.alpha=16", "schedule.learning_rate=5e-3", "checkpoint.export_merged=true"]
    runs = {"llmtrain": lambda: own("llmtrain", *options.option), "LoRA r=8": lambda: own("LoRA r=8", *lora)}
    if options.python:
        runs["TRL default"] = lambda: trl("TRL default", "fp32")
        runs |= {f"TRL {peer}": lambda peer=peer: trl(f"TRL {peer}", peer) for peer in options.peer.split(",")}
    if not options.busy:
        expect_quiet()
    results = {"base": dict(model=base)} | {name: run() for name, run in runs.items()}
    print(f"{'model':<22} {'held-out completion loss':>25} {'s/step':>8} {'peak MiB':>9} {'checkpoint MiB':>15}")
    for name, result in results.items():
        place = f"evaluate-{name.replace(' ', '-')}"
        checked([options.llmtrain, folder / "sft.ini", "run.task=evaluate", f"run.name={place}", f"run.output={folder}",
                 f"model.path={result['model']}", f"data.validation={folder}/held_out.jsonl"])
        result["loss"] = json.loads((folder / place / "evaluation.json").read_text())["loss"]
        costs = f"{result['seconds'] / options.steps:8.2f} {result['peak'] / 2**20:9.0f}" if "seconds" in result else ""
        costs += f" {result['checkpoint']:15.1f}" if "checkpoint" in result else ""
        print(f"{name:<22} {result['loss']:>25.4f} {costs}", flush=True)
    for name, result in results.items():
        if "settings" in result:
            print(f"settings of {name}: {result['settings']}")
        if "settings" in result and abs(result["loss"] - results["llmtrain"]["loss"]) > BOUND * result["loss"]:
            sys.exit(f"the losses of {name} and llmtrain differ by more than {BOUND}")
    for row in [json.loads(line) for line in open(folder / "held_out.jsonl", encoding="utf-8")][:3]:
        print("\n" + row["prompt"].strip())
        for name, result in results.items():
            answer = checked([options.llmtool, "generate", "--model", result["model"], "--prompt", row["prompt"], "--max-new-tokens", 40, "--greedy"])
            print(f"  {name}: {' '.join(answer['output'].split())}")


if __name__ == "__main__":
    main()
