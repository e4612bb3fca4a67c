#!/usr/bin/env python3
"""How true --estimate --measure is: predictions of the time of a step and runs of the same deck in turn (A B A B ...),
and the ratio of the medians.

    benchmarks/measure.py LLMTRAIN DECK [section.key=value ...] [--rounds 5] [--steps 60] [--ranks 1] [--threads N]

A run is `steps` steps without evaluations, checkpoints and samples; its first fifth is not counted. Environment: MPIRUN
(mpirun).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import training


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=training.program_file)
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--rounds", type=training.positive, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: all cores over the ranks")
    args = parser.parse_args()
    interval = args.steps // 5
    if interval < 1:
        parser.error("--steps: 5 or more")
    threads = args.threads or max(1, os.cpu_count() // args.ranks)
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    launch = []
    if args.ranks > 1:
        launch = os.environ.get("MPIRUN", "mpirun").split() + ["--oversubscribe", "--bind-to", "none", "-n",
                                                              str(args.ranks)]

    def output(options):
        command = launch + [os.path.abspath(args.program), args.deck] + options
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}\n{done.stdout[-4000:]}")
        return done.stdout

    with tempfile.TemporaryDirectory() as work:
        options = args.overrides + [
            f"run.output={work}", f"run.max_steps={args.steps}", f"data.cache={work}/cache", "evaluation.every_steps=0",
            "evaluation.at_end=false", "checkpoint.every_steps=0", "checkpoint.at_end=false",
            f"log.every_steps={interval}", "log.samples_every_steps=0", "log.sinks=jsonl"]
        predicted, taken = [], []
        print(f"{'round':<6} {'predicted s/step':>17} {'taken s/step':>13} {'ratio':>6}")
        for number in range(1, args.rounds + 1):
            text = output(options + ["--estimate", "--measure", "--json"])
            predicted.append(json.loads(text[text.index("{"):])["seconds_per_step"])
            output(options + [f"run.name=r{number}"])
            with open(f"{work}/r{number}/metrics.jsonl") as f:
                lines = [line for line in map(json.loads, f) if "tokens_per_second" in line]
            taken.append(statistics.mean(line["seconds"]["step"] for line in lines[1:]))
            print(f"{number:<6} {predicted[-1]:17.4f} {taken[-1]:13.4f} {predicted[-1] / taken[-1]:6.2f}", flush=True)
    print(f"\nmedian predicted / median taken: {statistics.median(predicted) / statistics.median(taken):.3f}")


if __name__ == "__main__":
    main()
