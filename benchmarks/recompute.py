#!/usr/bin/env python3
"""What memory.recompute costs and saves: a decoder trained at every level in turn (A B C D A B C D ...), checked to give
one ledger; time of a step and planned memory as ratios to `none`.

    benchmarks/recompute.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--precision bf16] [--rounds 5]
        [--steps 5] [--threads N] [--processor-time] [--option section.key=value ...]

--processor-time counts the seconds that a thread computed, from the difference between runs of --steps and of two
steps, instead of those that passed: for one thread, on a machine that is busy with other things.
Environment: as for training.py.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile

import training

LEVELS = ["none", "activation", "attention", "block"]


def planned(args, work):
    """Bytes of activations and of everything, from the deck that the last run has left."""
    command = [os.path.abspath(args.program), os.path.join(work, "deck.ini"), "--estimate", "--json"] + args.option
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(args.threads))).stdout
    plan = json.loads(text[text.index("{"):])["bytes_per_rank"]
    return plan["activations"], plan["total"] - plan["libraries"]


def processor_seconds(args, work, tokens):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = training.run_llmtrain(args, work, tokens)
    return result, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def step_seconds(args, work, tokens):
    """Of a step, with the run's results."""
    if not args.processor_time:
        result = training.run_llmtrain(args, work, tokens)
        return result, tokens / result["speed"]
    result, many = processor_seconds(args, work, tokens)
    short = argparse.Namespace(**vars(args))
    short.steps = training.WARM
    return result, (many - processor_seconds(short, work, tokens)[1]) / (args.steps - training.WARM)


def main():
    parser = training.make_parser(__doc__, steps=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--processor-time", action="store_true")
    args = parser.parse_args()
    args.accumulate = args.ranks = 1
    if args.processor_time and args.threads != 1:
        parser.error("--processor-time: threads that wait for each other compute, too; give --threads 1")
    if args.steps <= training.WARM:
        parser.error(f"--steps: more than {training.WARM}")
    given = args.option
    tokens = args.batch * args.length

    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        seconds = {level: [] for level in LEVELS}
        memory, losses = {}, None
        for _ in range(args.rounds):
            for level in LEVELS:
                args.option = given + ["memory.recompute=" + level]
                result, of_a_step = step_seconds(args, work, tokens)
                losses = losses or result["losses"]
                if result["losses"] != losses:
                    raise SystemExit(f"{level}: the losses differ from those of none")
                seconds[level].append(of_a_step)
                memory[level] = planned(args, work)
    print(f"{args.model}, {args.batch} x {args.length} tokens, {args.precision}, {args.threads} thread(s); "
          f"{training.processor()}")
    print(f"{'recompute':<12} {'step':>9} {'activations':>13} {'all memory':>12}   relative to none")
    first = memory["none"]
    for level in LEVELS:
        ratio = statistics.median(a / b for a, b in zip(seconds[level], seconds["none"]))
        print(f"{level:<12} {100 * (ratio - 1):+8.1f}% {memory[level][0] / 2**20:9.0f} MiB {memory[level][1] / 2**20:8.0f} MiB"
              f"   {100 * (memory[level][0] / first[0] - 1):+.1f}% {100 * (memory[level][1] / first[1] - 1):+.1f}%")


if __name__ == "__main__":
    main()
