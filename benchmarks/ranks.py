#!/usr/bin/env python3
"""What several ranks cost on one node: a decoder trained by one rank of N threads, by N ranks of one thread at ZeRO 0 to
3, and by N jobs of one rank and one thread side by side, which do the same passes with nothing to exchange, in turn
(A B C ... A B C ...). The runs of all ranks are checked to give the same losses. Printed are tokens/s as ratios to the
one rank; the time of a step over that of the separate jobs (at ZeRO 0, where a rank updates everything as they do, it is
the price of communication; above, the update is divided); and the time of a step over what it would be without exposed
communication, by log.profile.

    benchmarks/ranks.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--accumulate N] [--precision bf16]
        [--ranks 2] [--rounds 5] [--steps 5] [--messages] [--option section.key=value ...]

--messages: the same once more with messages instead of shared memory. Environment: as for training.py.
"""

import argparse
import concurrent.futures
import os
import re
import statistics
import tempfile

import training

MESSAGES = "LLMTRAIN_RANKS_PER_NODE"


def run(args, work, ranks, threads, stage, messages):
    here = argparse.Namespace(**vars(args))
    here.ranks, here.threads = ranks, threads
    here.option = args.option + [f"parallel.zero={stage}", f"log.profile={args.steps - training.WARM}"]
    os.environ.pop(MESSAGES, None)
    if messages:
        os.environ[MESSAGES] = "1"
    return training.run_llmtrain(here, work, here.batch * here.accumulate * here.length)


def without_communication(work):
    """Time of a step of rank 0 over that time without exposed communication."""
    with open(os.path.join(work, "runs", "run", "log.txt")) as f:
        text = f.read()
    step = float(re.search(r"^  total +([\d.]+)", text, re.MULTILINE)[1])
    return step / (step - float(re.search(r"^  rank 0: ([\d.]+) ms a step in exposed", text, re.MULTILINE)[1]))


def run_apart(args, work):
    """tokens/s of as many jobs of one rank as there are ranks, all together."""
    part = argparse.Namespace(**vars(args))
    part.accumulate = args.accumulate // args.ranks
    folders = [os.path.join(work, f"apart{i}") for i in range(args.ranks)]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(os.path.join(folder, "model")):
            os.symlink(os.path.join(work, "model"), os.path.join(folder, "model"))
    with concurrent.futures.ThreadPoolExecutor(args.ranks) as pool:
        return sum(r["speed"] for r in pool.map(lambda folder: run(part, folder, 1, 1, 0, False), folders))


def main():
    parser = training.make_parser(__doc__, steps=5)
    parser.add_argument("--accumulate", type=int, default=0, help="micro-batches of a step; 0: one for each rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--messages", action="store_true")
    args = parser.parse_args()
    if args.steps <= training.WARM:
        parser.error(f"--steps: more than {training.WARM}")
    if args.ranks < 2:
        parser.error("--ranks: 2 or more")
    args.accumulate = args.accumulate or args.ranks
    if args.accumulate % args.ranks != 0:
        parser.error("--accumulate: a multiple of --ranks, so that all ranks have equally much to do")
    ways = {f"1 rank x {args.ranks} threads": (1, args.ranks, 1, False)}
    for messages in [False] + [True] * args.messages:
        for stage in range(4):
            name = f"{args.ranks} ranks x 1 thread, ZeRO {stage}" + ", messages" * messages
            ways[name] = (args.ranks, 1, stage, messages)

    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        speeds = {name: [] for name in ways}
        exposed = {name: [] for name in ways}
        apart, losses = [], None
        for _ in range(args.rounds):
            for name, way in ways.items():
                result = run(args, work, *way)
                losses = losses or result["losses"]
                if result["losses"] != losses:
                    raise SystemExit(f"{name}: the losses differ from those of one rank")
                speeds[name].append(result["speed"])
                exposed[name].append(without_communication(work) if way[0] > 1 else 1.0)
            apart.append(run_apart(args, work))
    print(f"{args.model}, {args.accumulate} x {args.batch} x {args.length} tokens a step, as many reduction groups as "
          f"micro-batches, {args.precision}; {training.processor()}; medians of {args.rounds} rounds\n")
    print("| what | tokens/s | relative to one rank | range | step / that of separate jobs | step / without exposed "
          "communication |\n|---|---|---|---|---|---|")
    one = next(iter(speeds.values()))
    speeds[f"{args.ranks} jobs of 1 rank x 1 thread"] = apart
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(values, one)]
        beside = statistics.median(a / b for a, b in zip(apart, values))
        hidden = f"{statistics.median(exposed[name]):.3f}" if name in exposed else ""
        print(f"| {name} | {statistics.median(values):.0f} | {statistics.median(ratios):.2f} | "
              f"{min(ratios):.2f} to {max(ratios):.2f} | {beside:.2f} | {hidden} |")


if __name__ == "__main__":
    main()
