#!/usr/bin/env python3
"""Trains a decoder with PyTorch and with llmtrain in turn (A B A B ...) from the same weights on the same rows, checks
that the losses agree, and prints the ratios of tokens/s and of peak memory.

    benchmarks/training.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--accumulate 1]
        [--precision bf16] [--peer autocast,bf16,compile+autocast,...] [--rounds 5] [--steps 8] [--threads N]
        [--ranks 1] [--device cpu|cuda] [--option section.key=value ...] [--busy] [--markdown]

Of several peers those go on after the first round that were the fastest in it or within a tenth of that, and of those
with the same state (fp32 masters and moments) the smallest; one that fails in the first round is left out. Speed is the
median over the rounds of a round's median step, by the clock from one step's end to the next one's, without the first
two; memory is the largest resident set of the process, on one rank alone. A peer is
[compile+][flash+|cudnn+]fp32|autocast|bf16; see peers/train_decoder.py. FLOP/s of a step are by llmtrain's count for
both (PaLM's: 6 N + 12 L H Q T a token). Before each round the processors must be quiet (exit 75) unless --busy is
given. With --device cuda the program is the CUDA build's, nobody looks whether the machine is quiet, and memory is what
nvidia-smi sees the GPU's processes hold. Environment: PYTHON (this interpreter; needs torch and safetensors), MPIRUN
(mpirun). PyTorch gets tcmalloc where the loader finds it (PRELOAD names another library) unless TCMALLOC is none, else
a malloc that keeps its memory; which one it had, it says itself.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

import peer_rounds
from peer_rounds import WARM, checked, median, play, positive, processor, program_file, smallest

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(HERE, "peers", "train_decoder.py")
PYTHON = os.environ.get("PYTHON", sys.executable)
BOUNDS = {"fp32": 2e-4, "bf16": 2e-2}  # limits of a loss's distance, relative to the peer's


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def expect_gpu():
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        skip("nvidia-smi finds no GPU")


class GpuMemory:
    """The most that all processes together held while this one was open, read ten times a second."""

    def __enter__(self):
        self.begin, self.most = self.used(), 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.peak = self.most - self.begin

    @staticmethod
    def used():
        text = subprocess.check_output(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                       text=True)
        return sum(int(line) for line in text.split()) * 2**20

    def watch(self):
        while not self.over.wait(0.1):
            self.most = max(self.most, self.used())


def median_speed(seconds, tokens):
    return tokens / statistics.median(seconds[WARM:] or seconds)


def make_model(args, work):
    checked([PYTHON, PEER, "make", os.path.join(work, "model"), "--model", args.model, "--rows",
             str(args.steps * args.batch * args.accumulate), "--length", str(args.length)], os.environ)


def run_peer(args, work, peer, tokens):
    *options, precision = peer.split("+")
    result = os.path.join(work, "peer.json")
    command = [PYTHON, PEER, "train", os.path.join(work, "model"), "--steps", str(args.steps), "--batch",
               str(args.batch), "--accumulate", str(args.accumulate), "--precision", precision, "--json", result,
               "--threads", str(args.threads * args.ranks), "--device", args.device]
    command += ["--compile"] * ("compile" in options)
    for attention in ("flash", "cudnn"):
        command += ["--attention", attention] * (attention in options)
    process = checked(command, peer_rounds.best_environment())
    with open(result) as f:
        facts = json.load(f)
    return dict(process, losses=facts["losses"], speed=median_speed(facts["seconds"], tokens),
                version=f"PyTorch {facts['torch']}, malloc of {facts['malloc']}")


def run_llmtrain(args, work, tokens):
    shutil.rmtree(os.path.join(work, "runs"), ignore_errors=True)
    deck = os.path.join(work, "deck.ini")
    model = os.path.join(work, "model")
    with open(deck, "w") as f:
        f.write(f"""[run]
output = {work}/runs
name = run
max_steps = {args.steps}
[model]
path = {model}
[data]
train = {model}/rows.jsonl
packing = none
shuffle = false
validation_fraction = 0
cache = {work}/cache
[batch]
sequence_length = {args.length}
micro = {args.batch}
gradient_accumulation_steps = {args.accumulate}
[optimizer]
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1
max_grad_norm = 1.0
[schedule]
learning_rate = 1e-4
[precision]
compute = {args.precision}
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
sinks = jsonl
""")
    launch = []
    if args.ranks > 1:
        launch = os.environ.get("MPIRUN", "mpirun").split() + ["--oversubscribe", "--bind-to", "none", "-n",
                                                              str(args.ranks)]
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    process = checked(launch + [os.path.abspath(args.program), deck] + args.option, environment)
    with open(os.path.join(work, "runs", "run", "metrics.jsonl")) as f:
        lines = [line for line in map(json.loads, f) if "tokens_per_second" in line]
    if any(line["tokens"] != tokens for line in lines):
        sys.exit(f"a step of llmtrain has {lines[0]['tokens']} tokens instead of {tokens}")
    ends = [line["wall_time"] for line in lines]
    seconds = [tokens / lines[0]["tokens_per_second"]] + [b - a for a, b in zip(ends, ends[1:])]
    return dict(process, losses=[line["loss"] for line in lines], speed=median_speed(seconds, tokens),
                flops_per_token=lines[0]["flops_per_second"] / lines[0]["tokens_per_second"])


def check_losses(ours, theirs, precision):
    peer_rounds.check_losses(ours, theirs, BOUNDS[precision])


def run_program(args, work, tokens, name):
    with GpuMemory() if args.device == "cuda" else contextlib.nullcontext() as memory:
        result = run_llmtrain(args, work, tokens) if name == "llmtrain" else run_peer(args, work, name, tokens)
    return dict(result, peak=memory.peak) if memory else result


def check_peers(args, results):
    # Weights and moments in bf16 lose small updates to rounding: only the first losses can then be equal.
    for name in results:
        count = None if has_masters(name) else 1
        check_losses(results["llmtrain"][0]["losses"][:count], results[name][0]["losses"][:count], args.precision)
    print("the losses agree", flush=True)


def has_masters(peer):
    return not peer.endswith("bf16")


def make_parser(description, steps):
    """With the options of every benchmark that trains a decoder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=program_file)
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--length", type=positive, default=1024)
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--precision", choices=list(BOUNDS), default="bf16")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=steps)
    parser.add_argument("--option", action="append", default=[], metavar="section.key=value")
    return parser


def main():
    parser = make_parser(__doc__, steps=8)
    parser.add_argument("--accumulate", type=positive, default=1)
    parser.add_argument("--peer", help="comma-separated; default: the precision's, eager and compiled")
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: all cores over the ranks")
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--busy", action="store_true", help="measure although other processes run")
    parser.add_argument("--markdown", action="store_true", help="the last line is a row of benchmarks/results/pytorch.md")
    args = parser.parse_args()
    if args.steps <= WARM:
        parser.error(f"--steps: more than {WARM}")
    if args.device == "cuda":
        expect_gpu()
    args.threads = args.threads or max(1, os.cpu_count() // args.ranks)
    plain = ["fp32"] if args.precision == "fp32" else ["autocast", "bf16"]
    if args.device == "cuda" and args.precision != "fp32":
        plain = ["flash+autocast", "cudnn+autocast"]
    peers = args.peer.split(",") if args.peer else plain + ["compile+" + p for p in plain]
    tokens = args.batch * args.accumulate * args.length

    if args.busy:
        peer_rounds.say_busy()
    with tempfile.TemporaryDirectory() as work:
        make_model(args, work)
        print(f"{args.model}, {tokens} tokens a step ({args.accumulate} x {args.batch} x {args.length}), "
              f"{args.precision}, {args.ranks} rank(s) x {args.threads} thread(s); {processor()}")
        programs = {name: functools.partial(run_program, args, work, tokens, name) for name in [*peers, "llmtrain"]}
        results = play(programs, args.rounds, args.busy or args.device == "cuda", functools.partial(check_peers, args),
                       has_masters)
        text = subprocess.check_output([os.path.abspath(args.program), os.path.join(work, "deck.ini"), "--estimate",
                                        "--json", "--ranks", str(args.ranks)] + args.option,
                                       env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)), text=True)
        estimate = json.loads(text[text.index("{"):])["bytes_per_rank"]["total"]

    peers = [name for name in results if name != "llmtrain"]
    best = max(peers, key=lambda name: median(results, name, "speed"))
    small = smallest(results, list(filter(has_masters, peers)))
    ours, theirs = median(results, "llmtrain", "speed"), median(results, best, "speed")
    peak = median(results, "llmtrain", "peak")
    memory = f"llmtrain {peak / 2**30:.2f} GiB; no peer has the same state"
    memory_ratio = ""
    if args.ranks > 1 and args.device == "cpu":
        memory = "not compared: of several ranks"
    elif small:
        of_small = median(results, small, "peak")
        memory_ratio = f"{peak / of_small:.2f}"
        memory = (f"llmtrain {peak / 2**30:.2f} / PyTorch with the same state {of_small / 2**30:.2f} GiB "
                  f"({small}) = {memory_ratio}")
    version = results[best][0]["version"]
    flops = results["llmtrain"][0]["flops_per_token"]
    print(f"\nmedians; {version}, fastest: {best}")
    of_gpu = f", {ours * flops / 989e12:.1%} of the 989,000 of an H200 or H100" if args.device == "cuda" else ""
    print(f"GFLOP/s       llmtrain {ours * flops / 1e9:.0f}, PyTorch {theirs * flops / 1e9:.0f}{of_gpu}")
    print(f"tokens/s      llmtrain {ours:.0f} / PyTorch {theirs:.0f} = {ours / theirs:.2f}")
    print(f"peak memory   {memory}")
    if args.ranks == 1 or args.device == "cuda":
        print(f"peak memory / estimate: {peak / estimate:.3f}")
    if args.markdown:
        what = f"{args.model}, {args.precision}, {args.accumulate} x {args.batch} x {args.length} tokens, " \
               f"{args.accumulate} reduction group{'s' * (args.accumulate > 1)}"
        if args.ranks > 1:
            what += f", {args.ranks} ranks"
        print(f"| {what} | {ours:.0f} | {theirs:.0f} ({best}) | {ours / theirs:.2f} | {memory_ratio} | "
              f"{ours * flops / 1e9:.0f}, {theirs * flops / 1e9:.0f} | {version} |")


if __name__ == "__main__":
    main()
