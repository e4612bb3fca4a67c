#!/usr/bin/env python3
"""GPT-2 124M, 350M and 1558M on one GPU against PyTorch (eager and compiled, flash and cuDNN attention), bf16, context
1024: benchmarks/training.py with --device cuda for each, which also holds peak memory against --estimate.

    benchmarks/gpu_training.py LLMTRAIN [--programs FOLDER] [--rounds 5] [--models gpt2-124m,...]

FOLDER is not used (every gpu_*.py takes it). Needs a python3 with torch and safetensors, and a quiet GPU.
"""

import argparse
import os
import subprocess
import sys

BATCHES = {"gpt2-124m": 64, "gpt2-350m": 32, "gpt2-1558m": 16}
HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", default=",".join(BATCHES))
    args = parser.parse_args()
    failed = []
    for model in args.models.split(","):
        command = [sys.executable, os.path.join(HERE, "training.py"), args.program, "--device", "cuda", "--model", model,
                   "--batch", str(BATCHES.get(model, 8)), "--rounds", str(args.rounds), "--steps", str(args.steps),
                   "--markdown"]
        print(f"\n== {model}", flush=True)
        code = subprocess.run(command).returncode
        if code == 77:  # no GPU
            sys.exit(code)
        if code != 0:
            failed.append(model)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
