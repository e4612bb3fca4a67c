#!/usr/bin/env python3
"""What log.sinks costs: runs of a deck without sinks and with all, in turn, that log every step, and leave the same
ledger. Processor time of the process; the difference over the steps is the cost of an interval.

    benchmarks/sinks_overhead.py LLMTRAIN [section.key=value ...] [--deck inputs/quickstart.ini] [--rounds 5] [--steps 200]
        [--threads 1]
"""

import argparse
import os
import statistics
import tempfile

import training

DECK = os.path.join(training.HERE, "..", "inputs", "quickstart.ini")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=training.program_file)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--deck", default=DECK)
    parser.add_argument("--rounds", type=training.positive, default=5)
    parser.add_argument("--steps", type=training.positive, default=200)
    parser.add_argument("--threads", type=training.positive, default=1)
    args = parser.parse_intermixed_args()
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    with tempfile.TemporaryDirectory() as work:
        command = [os.path.abspath(args.program), args.deck] + args.overrides + [
            f"run.output={work}", "run.name=run", "run.overwrite=true", f"run.max_steps={args.steps}",
            f"data.cache={work}/cache", "evaluation.every_steps=0", "evaluation.at_end=false",
            "checkpoint.every_steps=0", "checkpoint.at_end=false", "log.samples_every_steps=0", "log.every_steps=1"]

        def run(sinks):
            """Seconds of processor time, ledger."""
            processor = training.checked(command + [f"log.sinks={sinks}"], environment)["processor"]
            with open(f"{work}/run/ledger.jsonl", encoding="utf-8") as ledger:
                return processor, ledger.read()

        ways = {"none": "", "all": "jsonl,hdf5,tensorboard,wandb,html"}
        _, ledger = run("")  # the tokens are in the cache
        times = {name: [] for name in ways}
        print(f"{'round':<6} {'sinks':<6} {'processor time':>15}")
        for number in range(1, args.rounds + 1):
            for name, sinks in ways.items():
                seconds, wrote = run(sinks)
                if wrote != ledger:
                    raise SystemExit(f"log.sinks={sinks} changes the ledger")
                times[name].append(seconds)
                print(f"{number:<6} {name:<6} {seconds:13.3f} s", flush=True)
    none = statistics.median(times["none"])
    more = [(a - n) / args.steps for a, n in zip(times["all"], times["none"])]
    print(f"\n{args.steps} steps, each logged, {args.threads} thread(s); medians; {training.processor()}\n"
          f"of an interval: {1e6 * statistics.median(more):.0f} us of processor time ({1e6 * min(more):.0f} to "
          f"{1e6 * max(more):.0f}), beside {1e3 * none / args.steps:.2f} ms of a step: "
          f"{100 * statistics.median(more) * args.steps / none:.2f} % where every step is logged")


if __name__ == "__main__":
    main()
