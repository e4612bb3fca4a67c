#!/usr/bin/env python3
"""How many steps optimizers take to a loss: trains a deck with each optimizer and peak rate, same weights, samples and
schedule, and prints the validation loss on the way and the steps until it is at most the best that the first optimizer
ends with.

    benchmarks/optimizer_losses.py LLMTRAIN DECK [section.key=value ...] [--optimizer "adamw" --optimizer "muon
        optimizer.adjust_lr_fn=match_rms_adamw" ...] [--rates 1e-3,2e-3] [--steps 2000] [--every 100] [--threads N]

An optimizer is its name and keys of the deck. The warm-up of the deck's schedule is kept, its end is the last step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import training


def validation_losses(path):
    with open(path) as file:
        lines = list(map(json.loads, file))
    return {line["step"]: float.fromhex(line["validation_loss"]) for line in lines if "validation_loss" in line}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=training.program_file)
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--optimizer", action="append")
    parser.add_argument("--rates", default="1e-3,2e-3,4e-3")
    parser.add_argument("--steps", type=training.positive, default=2000)
    parser.add_argument("--every", type=training.positive, default=100)
    parser.add_argument("--threads", type=training.positive, default=os.cpu_count())
    args = parser.parse_args()
    optimizers = args.optimizer or ["adamw", "muon optimizer.adjust_lr_fn=match_rms_adamw"]
    shown = [args.steps * part // 4 // args.every * args.every for part in (1, 2, 3)] + [args.steps]
    runs = []
    print(f"{training.processor()}, {args.threads} thread(s); validation loss after so many steps")
    print(f"{'optimizer':<12} {'peak rate':>9}" + "".join(f" {step:>8}" for step in shown), flush=True)
    with tempfile.TemporaryDirectory() as work:
        for optimizer in optimizers:
            name, *keys = optimizer.split()
            for rate in args.rates.split(","):
                command = [args.program, args.deck, *args.overrides, f"run.output={work}", f"run.name={len(runs)}",
                           f"run.max_steps={args.steps}", f"data.cache={work}/cache", f"optimizer.name={name}", *keys,
                           f"schedule.learning_rate={rate}", f"evaluation.every_steps={args.every}",
                           "evaluation.at_end=true", "checkpoint.every_steps=0", "checkpoint.at_end=false",
                           "log.samples_every_steps=0"]
                done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)),
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if done.returncode != 0:
                    sys.exit(f"failed: {' '.join(command)}\n{done.stdout[-4000:]}")
                losses = validation_losses(f"{work}/{len(runs)}/ledger.jsonl")
                runs.append((name, rate, losses))
                print(f"{name:<12} {rate:>9}" + "".join(f" {losses[step]:8.4f}" for step in shown), flush=True)
    first = optimizers[0].split()[0]
    goal = min(losses[args.steps] for name, _, losses in runs if name == first)
    print(f"\nsteps until the loss is at most {goal:.4f}, the lowest at the end with {first}, by evaluations every "
          f"{args.every} steps")
    for name in dict.fromkeys(name for name, _, _ in runs):
        reached = [(min(step for step, loss in losses.items() if loss <= goal), rate)
                   for other, rate, losses in runs if other == name and min(losses.values()) <= goal]
        print(f"{name:<12} " + ("{} (peak rate {})".format(*min(reached)) if reached else "never"))


if __name__ == "__main__":
    main()
