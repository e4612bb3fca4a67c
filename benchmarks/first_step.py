#!/usr/bin/env python3
"""How long until a run has done its first step: llmtrain and PyTorch eager in turn, each from the start of the process to
the end of a run of one step, from the same weights and row.

    benchmarks/first_step.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--precision bf16] [--peer autocast]
        [--rounds 5] [--threads N]

Environment: as for training.py.
"""

import os
import statistics
import tempfile
import time

import training


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main():
    parser = training.make_parser(__doc__, steps=1)
    parser.add_argument("--peer", default="autocast")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.accumulate = args.ranks = args.steps = 1
    args.device = "cpu"
    tokens = args.batch * args.length
    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        ways = {
            "llmtrain": lambda: training.run_llmtrain(args, work, tokens),
            "PyTorch": lambda: training.run_peer(args, work, args.peer, tokens),
        }
        times = {name: [] for name in ways}
        for way in ways.values():  # the files are in the page cache, the tokens in llmtrain's
            way()
        for _ in range(args.rounds):
            for name, way in ways.items():
                times[name].append(seconds(way))
                print(f"{name:<10} {times[name][-1]:.2f} s", flush=True)
    ours, theirs = (statistics.median(times[name]) for name in ways)
    print(f"\nmedians: llmtrain {ours:.2f} s, PyTorch {theirs:.2f} s: {theirs / ours:.1f} times as fast; "
          f"{training.processor()}")


if __name__ == "__main__":
    main()
