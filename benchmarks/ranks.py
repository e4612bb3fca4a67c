#!/usr/bin/env python3
"""What several ranks cost on one node: a decoder trained by one rank of N threads and by N ranks of one thread at ZeRO
1, 2 and 3 in turn (A B C D A B C D ...), checked to give the same losses; tokens/s as ratios to the one rank.

    benchmarks/ranks.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--accumulate N] [--precision bf16]
        [--ranks 2] [--rounds 5] [--steps 5] [--messages] [--option section.key=value ...]

--messages: the same once more with messages instead of shared memory. Environment: as for training.py.
"""

import argparse
import os
import statistics
import tempfile

import training

MESSAGES = "LLMTRAIN_RANKS_PER_NODE"


def run(args, work, tokens, ranks, threads, stage, messages):
    here = argparse.Namespace(**vars(args))
    here.ranks, here.threads = ranks, threads
    here.option = args.option + [f"parallel.zero={stage}"]
    os.environ.pop(MESSAGES, None)
    if messages:
        os.environ[MESSAGES] = "1"
    return training.run_llmtrain(here, work, tokens)


def main():
    parser = training.make_parser(__doc__, steps=5)
    parser.add_argument("--accumulate", type=int, default=0, help="micro-batches of a step; 0: one for each rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--messages", action="store_true")
    args = parser.parse_args()
    if args.steps <= training.WARM:
        parser.error(f"--steps: more than {training.WARM}")
    args.accumulate = args.accumulate or args.ranks
    tokens = args.batch * args.accumulate * args.length
    ways = {f"1 rank x {args.ranks} threads": (1, args.ranks, 1, False)}
    for messages in [False] + [True] * args.messages:
        for stage in (1, 2, 3):
            name = f"{args.ranks} ranks x 1 thread, ZeRO {stage}" + ", messages" * messages
            ways[name] = (args.ranks, 1, stage, messages)

    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        speeds = {name: [] for name in ways}
        losses = None
        for _ in range(args.rounds):
            for name, way in ways.items():
                result = run(args, work, tokens, *way)
                losses = losses or result["losses"]
                if result["losses"] != losses:
                    raise SystemExit(f"{name}: the losses differ from those of one rank")
                speeds[name].append(result["speed"])
    print(f"{args.model}, {args.accumulate} x {args.batch} x {args.length} tokens a step, {args.precision}; "
          f"{training.processor()}; medians of {args.rounds} rounds\n")
    print("| what | tokens/s | relative to one rank | range |\n|---|---|---|---|")
    one = next(iter(speeds.values()))
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(values, one)]
        print(f"| {name} | {statistics.median(values):.0f} | {statistics.median(ratios):.2f} | "
              f"{min(ratios):.2f} to {max(ratios):.2f} |")


if __name__ == "__main__":
    main()
