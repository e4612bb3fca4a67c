#!/usr/bin/env python3
"""Trains a decoder with PyTorch and with llmtrain in turn (A B A B ...) from the same weights on the same rows, checks
that the losses agree, and prints the ratios of tokens/s and of peak memory.

    benchmarks/training.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--accumulate 1]
        [--precision bf16] [--peer autocast,bf16,compile+autocast,...] [--rounds 5] [--steps 8] [--threads N]
        [--ranks 1] [--device cpu|cuda] [--option section.key=value ...] [--markdown]

Of several peers those go on after the first round that were the fastest in it or within a tenth of that, and of those
with the same state (fp32 masters and moments) the smallest; one that fails in the first round is left out. Speed is the
median over the rounds of a round's median step, by the clock from one step's end to the next one's, without the first
two; memory is the largest resident set of the process, on one rank alone. A peer is
[compile+][flash+|cudnn+]fp32|autocast|bf16; see peers/train_decoder.py. FLOP/s of a step are by llmtrain's count for
both (PaLM's: 6 N + 12 L H Q T a token). With --device cuda the program is the CUDA build's, the machine must be quiet,
and memory is what nvidia-smi sees the GPU's processes hold. Environment: PYTHON (this interpreter; needs torch and
safetensors), MPIRUN (mpirun). PyTorch gets tcmalloc where the loader finds it (PRELOAD names another library) unless
TCMALLOC is none, else a malloc that keeps its memory; which one it had, it says itself.
"""

import argparse
import contextlib
import ctypes.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(HERE, "peers", "train_decoder.py")
PYTHON = os.environ.get("PYTHON", sys.executable)
WARM = 2  # untimed steps: kernels, plans, compilation
FIRST_STEP = re.compile(r"step +1\b")  # the line that both programs print at the end of the step
BOUNDS = {"fp32": 2e-4, "bf16": 2e-2}  # limits of a loss's distance, relative to the peer's


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else "unknown processor"


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def program_file(path):
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is not a program")
    return path


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def expect_gpu():
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        skip("nvidia-smi finds no GPU")


class Failed(SystemExit):
    """A program did: what it printed last, which ends the benchmark unless somebody can do without it."""


def checked(command, environment):
    """Of the process: seconds from its start to its end, and to the line of the first step as it comes through the pipe;
    seconds of processor time; the largest resident set in bytes; what it printed."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
    lines, first = [], []

    def read():
        for line in process.stdout:
            if not first and FIRST_STEP.match(line):
                first.append(time.perf_counter() - begin)
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    reader.join(timeout=10)  # a child that outlives the process holds the pipe
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"failed: {' '.join(command)}\n{''.join(lines)[-4000:]}")
    return dict(seconds=seconds, first=first[0] if first else None, processor=usage.ru_utime + usage.ru_stime,
                peak=usage.ru_maxrss * 1024, output="".join(lines))


def allocator():
    """What PyTorch gets: tcmalloc where the loader finds it."""
    if os.environ.get("TCMALLOC") == "none":
        return ""
    return os.environ.get("PRELOAD") or ctypes.util.find_library("tcmalloc_minimal") or \
        ctypes.util.find_library("tcmalloc") or ""


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
    # Freeing and touching memory again costs PyTorch up to half its speed: these are the best settings known.
    environment = dict(os.environ, THP_MEM_ALLOC_ENABLE="1", MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(2**40))
    if allocator():
        environment["LD_PRELOAD"] = allocator()
    process = checked(command, environment)
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
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not math.isclose(a, b, rel_tol=BOUNDS[precision]):
            sys.exit(f"step {step + 1}: the losses differ, llmtrain {a}, PyTorch {b}")


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

    with tempfile.TemporaryDirectory() as work:
        make_model(args, work)
        results = {name: [] for name in peers + ["llmtrain"]}
        print(f"{args.model}, {tokens} tokens a step ({args.accumulate} x {args.batch} x {args.length}), "
              f"{args.precision}, {args.ranks} rank(s) x {args.threads} thread(s); {processor()}")
        print(f"{'round':<6} {'program':<18} {'tokens/s':>10} {'peak GiB':>9}   losses of the first and last step")
        for number in range(1, args.rounds + 1):
            for name in list(results):
                try:
                    with GpuMemory() if args.device == "cuda" else contextlib.nullcontext() as memory:
                        r = run_llmtrain(args, work, tokens) if name == "llmtrain" else run_peer(args, work, name, tokens)
                except Failed as error:
                    if name == "llmtrain" or number > 1 or len(peers) == 1:
                        sys.exit(str(error))
                    print(f"{number:<6} {name:<18} is left out, as it {error}", flush=True)
                    peers.remove(name)
                    del results[name]
                    continue
                if memory:
                    r["peak"] = memory.peak
                results[name].append(r)
                print(f"{number:<6} {name:<18} {r['speed']:10.1f} {r['peak'] / 2**30:9.2f}   "
                      f"{r['losses'][0]:.5f} {r['losses'][-1]:.5f}", flush=True)
            if number == 1:
                # Weights and moments in bf16 lose small updates to rounding: only the first losses can then be equal.
                for name in peers:
                    count = 1 if name.endswith("bf16") else None
                    check_losses(results["llmtrain"][0]["losses"][:count], results[name][0]["losses"][:count],
                                 args.precision)
                print("the losses agree", flush=True)
                fastest = max(peers, key=lambda name: results[name][0]["speed"])
                same_state = [p for p in peers if not p.endswith("bf16")]
                smallest = min(same_state, key=lambda name: results[name][0]["peak"], default=fastest)
                near = 0.9 * results[fastest][0]["speed"]  # one round does not tell which of two similar ones is faster
                peers = [p for p in peers if p == smallest or results[p][0]["speed"] > near]
                results = {name: results[name] for name in peers + ["llmtrain"]}

        text = subprocess.check_output([os.path.abspath(args.program), os.path.join(work, "deck.ini"), "--estimate",
                                        "--json", "--ranks", str(args.ranks)] + args.option,
                                       env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)), text=True)
        estimate = json.loads(text[text.index("{"):])["bytes_per_rank"]["total"]

    median = lambda name, key: statistics.median(r[key] for r in results[name])
    best = max(peers, key=lambda name: median(name, "speed"))
    ours, theirs = median("llmtrain", "speed"), median(best, "speed")
    peak = median("llmtrain", "peak")
    memory = f"llmtrain {peak / 2**30:.2f} GiB; no peer has the same state"
    memory_ratio = ""
    if args.ranks > 1 and args.device == "cpu":
        memory = "not compared: of several ranks"
    elif same_state:
        memory_ratio = f"{peak / median(smallest, 'peak'):.2f}"
        memory = (f"llmtrain {peak / 2**30:.2f} / PyTorch with the same state {median(smallest, 'peak') / 2**30:.2f} GiB "
                  f"({smallest}) = {memory_ratio}")
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
