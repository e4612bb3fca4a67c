#!/usr/bin/env python3
"""How true --estimate --measure is: predictions of the time of a step and of the run, and runs of the same deck in turn
(A B A B ...), and the ratios of the medians.

    benchmarks/measure.py LLMTRAIN DECK [section.key=value ...] [--rounds 5] [--steps 60] [--ranks 1] [--threads N]

A run is `steps` steps without checkpoints and samples, and with no evaluation but the deck's at the end. A step's time is
that of the last four fifths; the run's is by its own clock (wall_time, which starts when the text is read, before memory
and weights) and from the start of the process to its end. Environment: MPIRUN (mpirun).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

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
        begin = time.perf_counter()
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}\n{done.stdout[-4000:]}")
        return done.stdout, time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as work:
        options = args.overrides + [
            f"run.output={work}", f"run.max_steps={args.steps}", f"data.cache={work}/cache", "evaluation.every_steps=0",
            "checkpoint.every_steps=0", "checkpoint.at_end=false",
            f"log.every_steps={interval}", "log.samples_every_steps=0", "log.sinks=jsonl"]
        rounds = []
        print(f"{'round':<6} {'predicted s/step':>17} {'taken':>8} {'predicted s/run':>16} {'own clock':>10} "
              f"{'start to end':>13}")
        for number in range(1, args.rounds + 1):
            text, _ = output(options + ["--estimate", "--measure", "--json"])
            plan = json.loads(text[text.index("{"):])
            _, seconds = output(options + [f"run.name=r{number}"])
            with open(f"{work}/r{number}/metrics.jsonl") as f:
                lines = list(map(json.loads, f))
            steps = [line["seconds"]["step"] for line in lines if "tokens_per_second" in line]
            rounds.append((plan["seconds_per_step"], statistics.mean(steps[1:]), plan["seconds_of_run"],
                           lines[-1]["wall_time"], seconds))
            print("{:<6} {:17.4f} {:8.4f} {:16.2f} {:10.2f} {:13.2f}".format(number, *rounds[-1]), flush=True)
    step, step_taken, run, run_taken, seconds = (statistics.median(column) for column in zip(*rounds))
    print(f"\nmedian predicted / median taken: of a step {step / step_taken:.3f}, of the run by its own clock "
          f"{run / run_taken:.3f}, from the start of the process to its end {run / seconds:.3f}")


if __name__ == "__main__":
    main()
