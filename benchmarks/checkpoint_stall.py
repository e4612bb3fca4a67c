#!/usr/bin/env python3
"""How long training waits for its checkpoints: a decoder trained with a save every few steps; of each save but the
last, which has no steps to hide behind, the time that training waited, beside one copy of as many bytes in memory.

    benchmarks/checkpoint_stall.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 4] [--precision bf16]
        [--every 3] [--steps 16] [--ranks 1] [--threads N] [--rounds 5] [--option section.key=value ...]

The state is 12 bytes a parameter; checkpoint.buffer (256 MiB) is what of it is copied at once: the rest is read in the
background during the next step's passes, whose update waits for it. Environment: as for training.py; TMPDIR is where
the checkpoints go.
"""

import argparse
import os
import re
import statistics
import tempfile
import time

import training

UNITS = {"ms": 1e-3, "s": 1, "min": 60}
SAVED = re.compile(r"^saved .*: ([\d.]+) (\w+) in ([\d.]+) (\w+)[^;]*; training waited ([\d.]+) (\w+)$", re.MULTILINE)
SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def copy_seconds(count):
    """Of one thread, to memory that was touched before."""
    source, target = bytearray(b"\x01") * count, bytearray(b"\x02") * count
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        memoryview(target)[:] = source
        times.append(time.perf_counter() - begin)
    return min(times)


def main():
    parser = training.make_parser(__doc__, steps=16)
    parser.set_defaults(batch=4)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: all cores over the ranks")
    args = parser.parse_args()
    if args.steps <= 2 * args.every:
        parser.error("--steps: more than two times --every")
    args.accumulate = args.ranks
    args.threads = args.threads or max(1, os.cpu_count() // args.ranks)
    args.option += [f"checkpoint.every_steps={args.every}", "checkpoint.keep=2"]
    print(f"{'round':<6} {'state':>10} {'copy':>8} {'in the background':>18} {'training waited':>16}   seconds")
    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        stalls, copy = [], 0
        for number in range(1, args.rounds + 1):
            training.run_llmtrain(args, work, args.batch * args.accumulate * args.length)
            with open(os.path.join(work, "runs", "run", "log.txt")) as f:
                saves = SAVED.findall(f.read())
            if len(saves) < 2:
                raise SystemExit("there were no two saves")
            state = float(saves[0][0]) * SIZES[saves[0][1]]
            copy = copy or copy_seconds(int(state) // args.ranks)
            for save in saves[:-1]:
                whole, waited = (float(save[i]) * UNITS[save[i + 1]] for i in (2, 4))
                stalls.append(waited)
                print(f"{number:<6} {state / 2**20:6.0f} MiB {copy:8.3f} {whole:18.2f} {waited:16.3f}", flush=True)
    print(f"\nmedian of the waits {statistics.median(stalls):.3f} s, {statistics.median(stalls) / copy:.2f} of a copy of "
          f"the state by one thread; {args.ranks} rank(s) x {args.threads} thread(s); {training.processor()}")


if __name__ == "__main__":
    main()
