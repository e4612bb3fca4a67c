#!/usr/bin/env python3
"""What recording a profile costs: runs of a deck with log.profile = 0, 1 and all steps in turn (A B C A B C ...), which
must leave the same ledger; processor time of the process, the time of a step by its own log, and the ratios of the
medians (least and most of the rounds).

    benchmarks/profile_overhead.py LLMTRAIN [section.key=value ...] [--deck inputs/shakespeare_char.ini] [--rounds 5]
        [--steps 400] [--threads 1]

The run that records one step measures the machine for its table, too: what the run of all steps takes beyond it is the
recording of the others and their trace. Recording ends at 65,536 spans: how many steps that were is said. Threads that
wait for each other compute, too: more than one blur the processor time.
"""

import argparse
import json
import os
import re
import statistics
import tempfile

import training

DECK = os.path.join(training.HERE, "..", "inputs", "shakespeare_char.ini")
RECORDED = re.compile(r"^profile +steps (\d+) to (\d+)", re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=training.program_file)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--deck", default=DECK)
    parser.add_argument("--rounds", type=training.positive, default=5)
    parser.add_argument("--steps", type=training.positive, default=400)
    parser.add_argument("--threads", type=training.positive, default=1)
    args = parser.parse_intermixed_args()
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    with tempfile.TemporaryDirectory() as work:
        command = [os.path.abspath(args.program), args.deck] + args.overrides + [
            f"run.output={work}", "run.name=run", "run.overwrite=true", f"run.max_steps={args.steps}",
            f"data.cache={work}/cache", "evaluation.every_steps=0", "evaluation.at_end=false",
            "checkpoint.every_steps=0", "checkpoint.at_end=false", "log.samples_every_steps=0",
            f"log.every_steps={args.steps}", "log.every_first=false", "log.sinks=jsonl"]

        def run(steps):
            """Seconds of processor time and of a step, steps recorded, ledger."""
            r = training.checked(command + [f"log.profile={steps}"], environment)
            found = RECORDED.search(r["output"])
            with open(f"{work}/run/metrics.jsonl") as metrics, open(f"{work}/run/ledger.jsonl") as ledger:
                return (r["processor"], json.loads(metrics.readline())["seconds"]["step"],
                        int(found[2]) - int(found[1]) + 1 if found else 0, ledger.read())

        *_, ledger = run(0)  # the tokens are in the cache
        ways = {"none": 0, "one": 1, "all": args.steps}
        results, recorded = {name: [] for name in ways}, {}
        print(f"{'round':<6} {'steps recorded':<15} {'processor time':>15} {'of a step':>12}")
        for number in range(1, args.rounds + 1):
            for name, steps in ways.items():
                *seconds, recorded[name], wrote = run(steps)
                if wrote != ledger:
                    raise SystemExit(f"log.profile={steps} changes the ledger")
                results[name].append(seconds)
                print(f"{number:<6} {recorded[name]:<15} {seconds[0]:13.3f} s {1e3 * seconds[1]:9.3f} ms", flush=True)
    print(f"\n{args.steps} steps, {recorded['all']} of them recorded, {args.threads} thread(s); medians; "
          f"{training.processor()}")
    for what, i, base in (("processor time", 0, "none"), ("processor time", 0, "one"), ("time of a step", 1, "none")):
        ours, theirs = ([r[i] for r in results[name]] for name in ("all", base))
        ratios = [a / b for a, b in zip(ours, theirs)]
        print(f"{what}, all recorded / {base:<4}  {statistics.median(ours) / statistics.median(theirs):.4f} "
              f"({min(ratios):.4f} to {max(ratios):.4f})")


if __name__ == "__main__":
    main()
