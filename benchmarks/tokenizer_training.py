#!/usr/bin/env python3
"""Learns byte-level BPE with `llmtool tokenizer train` and with the tokenizers package in turn (A B A B ...), each a
process of its own on as many threads; both files must be the same, byte for byte. Times from start to exit, processor
times, peak memory, and their ratios.

    benchmarks/tokenizer_training.py LLMTOOL TEXT [--vocabulary 32000] [--threads 1] [--rounds 5]

Environment: PYTHON (this interpreter; needs tokenizers).
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import training

PYTHON = os.environ.get("PYTHON", sys.executable)
PEER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
text, size, output = sys.argv[1:]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train([text], trainers.BpeTrainer(vocab_size=int(size), special_tokens=["<|endoftext|>"], show_progress=False,
                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save(output)
"""


def run(command, environment):
    """Seconds, seconds of processor time, bytes."""
    begin = time.perf_counter()
    child = os.posix_spawnp(command[0], command, environment, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"failed: {command[0]} ... {command[-1]}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=training.program_file)
    parser.add_argument("text")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=training.positive, default=5)
    args = parser.parse_args()
    environment = dict(os.environ, RAYON_NUM_THREADS=str(args.threads))
    with tempfile.TemporaryDirectory() as work:
        peer = os.path.join(work, "peer.json")
        ways = {
            "llmtrain": [os.path.abspath(args.tool), "tokenizer", "train", "--input", args.text, "--vocab-size",
                         str(args.vocabulary), "--threads", str(args.threads), "--force", "--output", work],
            "tokenizers": [PYTHON, "-c", PEER, args.text, str(args.vocabulary), peer],
        }
        results = {name: [] for name in ways}
        for number in range(1, args.rounds + 1):
            for name, command in ways.items():
                results[name].append(run(command, environment))
                seconds, processor, peak = results[name][-1]
                print(f"{number:<3} {name:<11} {seconds:7.2f} s, {processor:7.2f} s of processor time, "
                      f"{peak / 2**20:6.0f} MiB", flush=True)
            with open(os.path.join(work, "tokenizer.json"), "rb") as ours, open(peer, "rb") as theirs:
                if ours.read() != theirs.read():
                    sys.exit("the tokenizers differ")
    print(f"\n{os.path.getsize(args.text) / 1e6:.1f} MB, {args.vocabulary} tokens, {args.threads} thread(s); the files "
          "are the same; tokenizers / llmtrain, medians of the rounds' ratios (least, most)")
    for i, what in enumerate(["time", "processor time", "peak memory"]):
        ratios = [theirs[i] / ours[i] for ours, theirs in zip(results["llmtrain"], results["tokenizers"])]
        print(f"{what:<15} {statistics.median(ratios):6.2f} ({min(ratios):.2f}, {max(ratios):.2f})")


if __name__ == "__main__":
    main()
