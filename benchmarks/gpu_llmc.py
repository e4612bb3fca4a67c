#!/usr/bin/env python3
"""Trains GPT-2 on one GPU with llm.c and with llmtrain in turn (A B A B ...) from the same weights on the same batch,
checks that the losses agree, and prints the ratios of tokens/s and of peak memory.

    benchmarks/gpu_llmc.py LLMTRAIN --llmc TRAIN_GPT2CU [--model gpt2-124m] [--length 1024] [--batch 64] [--rounds 5]
        [--steps 20] [--llmc-options "-r 0"] [--option section.key=value ...] [--programs FOLDER]

TRAIN_GPT2CU is llm.c's train_gpt2cu, built on this machine (`make train_gpt2cu`, best with USE_CUDNN=1); the environment
variable LLMC names it, too. FOLDER is not used (every gpu_*.py takes it). llm.c keeps fp32 masters and moments beside
bf16 weights, as llmtrain does. Its data loader shuffles, so every step of both has the same batch of random tokens.
Needs a python3 with torch and safetensors (PYTHON), nvidia-smi and a quiet GPU.
"""

import array
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

import training

STEP = re.compile(r"step\s+\d+/\d+ \| loss (\S+) .*\| ([\d.]+) ms \|")
TOKENS_MAGIC, MODEL_MAGIC, BF16_MODEL = 20240520, 20240326, 5
IN_LAYERS = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
             "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
             "mlp.c_proj.bias"]


def header(*numbers):
    return array.array("i", list(numbers) + [0] * (256 - len(numbers))).tobytes()


def write_batch(args, work):
    """The same batch for both: a stream of tokens, and rows that share their borders."""
    with open(os.path.join(work, "model", "config.json")) as f:
        vocabulary = json.load(f)["vocab_size"]
    source = random.Random(1)
    count = args.batch * args.length + 1
    tokens = array.array("H", [source.randrange(vocabulary) for _ in range(count)])
    with open(os.path.join(work, "tokens.bin"), "wb") as f:
        f.write(header(TOKENS_MAGIC, 1, count) + tokens.tobytes())
    rows = [json.dumps({"input_ids": tokens[at:at + args.length + 1].tolist()}) + "\n"
            for at in range(0, count - 1, args.length)]
    with open(os.path.join(work, "model", "rows.jsonl"), "w") as f:
        f.writelines(rows * args.steps)


def write_model(work):
    """llm.c's bf16 file: padded table, positions, then each tensor of all layers, matrices [out, in]."""
    import torch
    from safetensors.torch import load_file
    with open(os.path.join(work, "model", "config.json")) as f:
        c = json.load(f)
    tensors = load_file(os.path.join(work, "model", "model.safetensors"))
    padded = (c["vocab_size"] + 127) // 128 * 128
    with open(os.path.join(work, "model.bin"), "wb") as f:
        def write(t):
            f.write(t.contiguous().to(torch.bfloat16).view(torch.int16).numpy().tobytes())

        f.write(header(MODEL_MAGIC, BF16_MODEL, c["n_positions"], c["vocab_size"], c["n_layer"], c["n_head"],
                       c["n_embd"], padded))
        write(torch.nn.functional.pad(tensors["wte.weight"], (0, 0, 0, padded - c["vocab_size"])))
        write(tensors["wpe.weight"])
        for name in IN_LAYERS:
            for layer in range(c["n_layer"]):
                t = tensors[f"h.{layer}.{name}"]
                write(t.t() if t.ndim == 2 else t)
        write(tensors["ln_f.weight"])
        write(tensors["ln_f.bias"])


def run_llmc(args, work, tokens):
    command = [os.path.abspath(args.llmc), "-e", "model.bin", "-i", "tokens.bin", "-j", "tokens.bin", "-b",
               str(args.batch), "-t", str(args.length), "-d", str(tokens), "-x", str(args.steps), "-l", "1e-4", "-q",
               "1.0", "-u", "0", "-c", "0.1", "-v", "1000000", "-m", "1", "-s", "0", "-n", "0"]
    done = subprocess.run(command + args.llmc_options.split(), cwd=work, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    steps = [STEP.match(line) for line in done.stdout.splitlines()]
    steps = [(float(m[1]), float(m[2]) / 1e3) for m in steps if m]
    if done.returncode != 0 or len(steps) != args.steps:
        sys.exit(f"failed (exit code {done.returncode}, {len(steps)} steps): {' '.join(command)}\n{done.stdout[-4000:]}")
    return dict(losses=[loss for loss, _ in steps], speed=training.median_speed([s for _, s in steps], tokens))


def check_losses(ours, theirs):
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not math.isclose(a, b, rel_tol=training.BOUNDS["bf16"]):
            sys.exit(f"step {step + 1}: the losses differ, llmtrain {a}, llm.c {b}")


def main():
    parser = training.make_parser(__doc__, steps=20)
    parser.add_argument("--llmc", default=os.environ.get("LLMC"))
    parser.add_argument("--llmc-options", default="-r 0", help="of train_gpt2cu, further ones")
    parser.add_argument("--programs")
    parser.set_defaults(batch=64)
    args = parser.parse_args()
    args.accumulate, args.ranks, args.threads = 1, 1, os.cpu_count()
    if args.precision != "bf16" or not args.model.startswith("gpt2"):
        parser.error("llm.c is compared on GPT-2 in bf16")
    if args.steps <= training.WARM:
        parser.error(f"--steps: more than {training.WARM}")
    if not args.llmc:
        training.skip("--llmc or LLMC names llm.c's train_gpt2cu")
    if not os.access(args.llmc, os.X_OK):
        parser.error(f"--llmc: {args.llmc} is not a program")
    training.expect_gpu()

    tokens = args.batch * args.length
    results = {"llm.c": [], "llmtrain": []}
    with tempfile.TemporaryDirectory() as work:
        training.make_model(args, work)
        write_batch(args, work)
        write_model(work)
        print(f"{args.model}, {tokens} tokens a step ({args.batch} x {args.length}), bf16")
        print(f"{'round':<6} {'program':<10} {'tokens/s':>10} {'peak GiB':>9}   losses of the first and last step")
        for number in range(1, args.rounds + 1):
            for name, run in (("llm.c", run_llmc), ("llmtrain", training.run_llmtrain)):
                with training.GpuMemory() as memory:
                    r = run(args, work, tokens)
                r["peak"] = memory.peak
                results[name].append(r)
                print(f"{number:<6} {name:<10} {r['speed']:10.1f} {r['peak'] / 2**30:9.2f}   "
                      f"{r['losses'][0]:.5f} {r['losses'][-1]:.5f}", flush=True)
            if number == 1:
                check_losses(results["llmtrain"][0]["losses"], results["llm.c"][0]["losses"])
                print("the losses agree", flush=True)
    median = lambda name, key: statistics.median(r[key] for r in results[name])
    ours, theirs = median("llmtrain", "speed"), median("llm.c", "speed")
    print(f"\nmedians of {args.rounds} rounds")
    print(f"tokens/s      llmtrain {ours:.0f} / llm.c {theirs:.0f} = {ours / theirs:.2f}")
    a, b = median("llmtrain", "peak"), median("llm.c", "peak")
    print(f"peak memory   llmtrain {a / 2**30:.2f} / llm.c {b / 2**30:.2f} GiB = {a / b if b else math.nan:.2f}")


if __name__ == "__main__":
    main()
