#!/usr/bin/env python3
"""How long until a run has done its first step: llmtrain and PyTorch eager in turn (A B A B ...), each a run of one
step from the same weights and row. From the start of the process until the step's line, flushed when its update is done,
has come through a pipe to this script, whose clock counts for both; and to the end of the process.

    benchmarks/first_step.py LLMTRAIN [--model gpt2-124m] [--length 1024] [--batch 1] [--precision bf16] [--peer autocast]
        [--rounds 5] [--threads N]

Environment: as for training.py.
"""

import os
import statistics
import tempfile

import training


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
        results = {name: [] for name in ways}
        for way in ways.values():  # the files are in the page cache, the tokens in llmtrain's cache
            way()
        for _ in range(args.rounds):
            for name, way in ways.items():
                r = way()
                if r["first"] is None:
                    raise SystemExit(f"{name} has not said that its first step is done:\n{r['output'][-4000:]}")
                results[name].append(r)
                print(f"{name:<10} first step after {r['first']:.2f} s, end after {r['seconds']:.2f} s", flush=True)
        training.check_losses(results["llmtrain"][0]["losses"], results["PyTorch"][0]["losses"], args.precision)
    print(f"\nmedians; {results['PyTorch'][0]['version']}, {args.peer}; {training.processor()}")
    for what, key in (("first step done", "first"), ("end of the process", "seconds")):
        ours, theirs = (statistics.median(r[key] for r in results[name]) for name in ways)
        print(f"{what:<19} llmtrain {ours:.2f} s, PyTorch {theirs:.2f} s: {theirs / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
