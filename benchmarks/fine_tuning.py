#!/usr/bin/env python3
"""fine_tuning.py LLMTRAIN DATA PYTHON [--cases A,B] [--peer A,B] [--rounds N] [--steps N] [--busy]: trained tokens a
second and peak memory of fine-tuning, beside TRL and PEFT at their best settings.

A model of Llama's shape with some 300 million random weights is tuned on rows of DATA/sft/alpaca.jsonl, context 512, 8
rows a step in two micro-batches, in bf16 where this processor multiplies bf16, else in fp32; LoRA begins from one adapter
on both sides. The peer's settings (peers/tune.py; PYTHON has torch, transformers, trl, peft and datasets) all run in the
first round: rows padded in groups of like lengths, padding-free or packed; eager and compiled; autocast and pure bf16;
with tcmalloc (training.py --help says more). The fastest go on to the last round, and the default, as published: padded,
eager, the C library's malloc. The first two steps are not timed. Losses of every step must agree (of pure bf16 the first
one, as its weights lose small updates) and its trained tokens be the same, on the same rows in the same order; packed
rows are other steps, whose first loss must be near. The machine must be quiet.
"""
import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peer_rounds import WARM, best_environment, check_losses, checked, median, play, positive, precision, processor
from peer_rounds import program_file, say_busy, smallest

PEER = pathlib.Path(__file__).resolve().parent / "peers/tune.py"
LORA = ["run.finetuning=lora"]
CASES = {  # name: keys of llmtrain, how the peer batches rows, the default's way, learning rate
    "sft": ([], ["grouped", "free"], "", 1e-4),
    "sft packed": (["data.packing=best_fit"], ["packed"], "packed", 1e-4),
    "lora": (LORA, ["grouped", "free"], "", 1e-3),
    "lora packed": ([*LORA, "data.packing=best_fit"], ["packed"], "packed", 1e-3),
}
BOUNDS = {"fp32": 2e-4, "bf16": 5e-3}  # limits of a loss's distance, relative to the peer's
NEAR = 0.05  # limit of the distance of packed steps
DECK = """[run]
name = run
overwrite = true
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
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
"""


def make_model(python, tokenizer, base, layers=18, width=1024, inner=None, positions=512):
    """Writes a Hugging Face folder of Llama's shape with random weights, and base-adapter, one of PEFT's. The inner width is
    a multiple of 64: bitsandbytes' products on processors want whole blocks in a row."""
    checked([python, PEER, "model", json.dumps(dict(tokenizer=str(tokenizer), base=str(base), layers=layers, width=width,
                                                    inner=inner or -(-width * 11 // 256) * 64, positions=positions))])


def write_rows(path, rows):
    """Alpaca's rows as prompts and completions."""
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
            file.write(json.dumps({"prompt": f"### Instruction:\n{question}\n\n### Response:\n", "completion": row["output"]}) + "\n")


def read_rows(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def speed(tokens, seconds):
    """Tokens a second of the timed steps; steps may hold different numbers of tokens."""
    first = WARM if len(seconds) > WARM else 0
    return sum(tokens[first:]) / sum(seconds[first:])


def trained_tokens(line):
    """Of a line of metrics: a step of pairs or of completions counts these as its tokens."""
    answers = line["tokens"] * (2 if "completions/chosen_mean_length" in line else 1)
    return round(line["completions/mean_length"] * answers) if "completions/mean_length" in line else line["tokens"]


def make_parser(description, cases, layers):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain", type=program_file)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("python")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--peer", help="comma-separated settings of the peer in place of all, as in peers/tune.py")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=8, help=f"the first {WARM} are not timed")
    parser.add_argument("--layers", type=positive, default=layers)
    parser.add_argument("--width", type=positive, default=1024)
    parser.add_argument("--tokenizer", default="llama2")
    parser.add_argument("--option", action="append", default=[], metavar="section.key=value", help="of llmtrain alone")
    parser.add_argument("--busy", action="store_true", help="measure although other processes run")
    return parser


class Bench:
    """A model with random weights, rows, and what is trained on them by both sides."""

    def __init__(self, options):
        if options.steps <= WARM:
            sys.exit(f"--steps: more than {WARM}")
        if options.busy:
            say_busy()
        os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
        self.options, self.precision = options, precision()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fine_tuning."))
        self.base = self.folder / "base"
        make_model(options.python, options.data / "tokenizer" / options.tokenizer, self.base, options.layers, options.width)
        (self.folder / "deck.ini").write_text(DECK)
        print(f"{options.layers} layers of width {options.width}, {self.precision}, {os.environ['OMP_NUM_THREADS']} "
              f"thread(s); {processor()}", flush=True)

    def write(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def command(self, rows, keys):
        given = dict(key.split("=", 1) for key in [
            f"run.output={self.folder}", "run.task=sft", f"run.max_steps={self.options.steps}", f"model.path={self.base}",
            f"data.train={rows}", "data.packing=none", f"precision.compute={self.precision}", *keys, *self.options.option])
        if given.get("run.finetuning") == "lora":
            given["lora.path"] = f"{self.base}-adapter"
        return [self.options.llmtrain, self.folder / "deck.ini", *(f"{key}={value}" for key, value in given.items())]

    def llmtrain(self, rows, *keys):
        process = checked(self.command(rows, keys))
        lines = read_rows(self.folder / "run/metrics.jsonl")
        steps = [line for line in lines if "grad_norm" in line]
        ends = [line["wall_time"] for line in steps]
        seconds = [steps[0]["seconds"]["step"]] + [b - a for a, b in zip(ends, ends[1:])]
        tokens = [trained_tokens(line) for line in steps]
        return dict(process, lines=lines, losses=[line["loss"] for line in steps], tokens=tokens, speed=speed(tokens, seconds),
                    entropies=[line.get("entropy", 0) for line in steps], step=sum(seconds[WARM:]) / len(seconds[WARM:] or [1]),
                    settings=" ".join([*keys, *self.options.option]))

    def tune(self, task, environment=None, **case):
        result = self.folder / f"{task}.json"
        process = checked([self.options.python, PEER, task, json.dumps(dict(base=str(self.base), result=str(result)) | case)], environment)
        return process, result

    def peer(self, task, name, rows, default="", **case):
        """`default` has the words of the setting that is called so."""
        plain = name == "default"
        case = dict(peer=default if plain else name, rows=str(rows), steps=self.options.steps, micro=4, accumulate=2, length=512) | case
        process, result = self.tune(task, dict(os.environ) if plain else best_environment(), **case)
        facts = json.loads(result.read_text())
        seconds = facts["seconds"][WARM:] or facts["seconds"]
        return dict(process, **facts, speed=speed(facts["tokens"], facts["seconds"]), step=sum(seconds) / len(seconds))

    def settings(self, ways, default=""):
        """The peer's settings: of every way to batch, eager and compiled, in every precision; and the default's words."""
        precisions = ["fp32"] if self.precision == "fp32" else ["autocast", "bf16"]
        words = [[way, compiled, number] for way in ways for compiled in ("", "compile") for number in precisions]
        peers = self.options.peer.split(",") if self.options.peer else ["+".join(filter(None, each)) for each in words]
        return ["default", *peers], "+".join(filter(None, [default, precisions[0]]))

    def grouped(self, rows, batch=8):
        _, result = self.tune("group", rows=str(rows), first=WARM * batch, batch=batch)
        return result

    def check(self, own, peer, name, words, bound=None):
        """Ends the benchmark (1) unless both trained on the same tokens to the same losses."""
        if "packed" in words:
            return check_losses(own["losses"][:1], peer["losses"][:1], NEAR, name)
        if own["tokens"] != peer["tokens"]:
            sys.exit(f"trained tokens of the steps differ: llmtrain {own['tokens']}, {name} {peer['tokens']}")
        count = 1 if words.split("+")[-1] == "bf16" else None
        check_losses(own["losses"][:count], peer["losses"][:count], bound or BOUNDS[self.precision], name)

    def compete(self, title, task, keys, rows, peers, default, bound=None, check=None, own=None, **case):
        """Runs llmtrain and the peer's settings in turn and prints the table of a case."""
        print(f"\n{title}", flush=True)
        files = {True: self.grouped(rows), False: rows} if any("grouped" in name for name in peers) else {False: rows}

        def check_all(results):
            ours = {False: results["llmtrain"][0]}
            for name in results:
                order = "grouped" in name
                if order not in ours:
                    ours[order] = self.llmtrain(files[order], *keys)
                if name != "llmtrain":
                    words = default if name == "default" else name
                    (check or functools.partial(self.check, bound=bound))(ours[order], results[name][0], name, words)
            print("the losses and the trained tokens agree" if not check else "what both report agrees", flush=True)

        programs = {"llmtrain": own or (lambda: self.llmtrain(rows, *keys))}
        for name in peers:
            programs[name] = functools.partial(self.peer, task, name, files["grouped" in name], default, **case)
        lora = any("lora" in key for key in keys)
        results = play(programs, self.options.rounds, self.options.busy, check_all,
                       same_state=lambda name: lora or name.split("+")[-1] != "bf16", kept=("default",))
        planned = subprocess.run([str(part) for part in [*self.command(rows, keys), "--estimate", "--json"]], capture_output=True, text=True)
        show(title, results, json.loads(planned.stdout)["bytes_per_rank"]["total"])


def show(title, results, planned):
    peers = [name for name in results if name != "llmtrain"]
    best = max(peers, key=lambda name: median(results, name, "speed"))
    small = smallest(results, peers)
    print(f"\n{title}: medians; the ratios are of llmtrain to the line's; its plan has {planned / 2**30:.2f} GiB")
    print(f"{'':<8} {'program':<26} {'tokens/s':>9} {'s/step':>8} {'peak GiB':>9} {'speed':>6} {'memory':>6}")
    ours, peak = median(results, "llmtrain", "speed"), median(results, "llmtrain", "peak")
    for name in ["llmtrain", *sorted(peers, key=lambda name: -median(results, name, "speed"))]:
        place = "fastest" if name == best else "smallest" if name == small else ""
        rate, memory = median(results, name, "speed"), median(results, name, "peak")
        print(f"{place:<8} {name:<26} {rate:9.1f} {median(results, name, 'step'):8.2f} {memory / 2**30:9.2f} {ours / rate:6.2f} "
              f"{peak / memory:6.2f}")
    for name in ["llmtrain", *dict.fromkeys((best, "default"))]:
        if name in results:
            print(f"settings of {name}: {results[name][0]['settings']}")
    print(end="", flush=True)


def main():
    options = make_parser(__doc__, CASES, layers=18).parse_args()
    bench = Bench(options)
    rows = [row for row in read_rows(options.data / "sft/alpaca.jsonl")
            if len(row["instruction"] + row["input"] + row["output"]) < 1200]
    for case in options.cases.split(","):
        keys, ways, default, rate = CASES[case]
        count = options.steps * 8 * (8 if default else 1)  # packed, a step holds some five times as many
        write_rows(bench.folder / "rows.jsonl", rows[:count])
        peers, words = bench.settings(ways, default)
        adapter = {"adapter": f"{bench.base}-adapter"} if "lora" in case else {}
        bench.compete(case, "sft", [*keys, f"schedule.learning_rate={rate}"], bench.folder / "rows.jsonl", peers, words, rate=rate, **adapter)


if __name__ == "__main__":
    main()
