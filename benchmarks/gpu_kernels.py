#!/usr/bin/env python3
"""Kernels alone on a GPU: attention, the head with its loss, AdamW, and what fixed orders of summation cost (the norm of
the gradients, the embedding's backward pass), llmtrain and PyTorch in turn (A B A B ...) on the same shapes with random
numbers; prints the ratios of the medians.

    benchmarks/gpu_kernels.py [LLMTRAIN] --programs FOLDER [--rounds 5]

FOLDER holds gpu_kernels_bench of the CUDA build; LLMTRAIN is not used (every gpu_*.py takes it). Needs torch with CUDA
and a quiet GPU. Attention is causal, by our own kernels and by cuDNN, each beside PyTorch's two backends; backward counts
alone. PyTorch's embedding adds rows by atomics, in no order.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def timed(torch, call, rounds=7):
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(3, min(2000, int(0.05 / max(time.perf_counter() - begin, 1e-6))))
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / calls)
    return statistics.median(seconds)


def attention(torch, case):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    shape = (case["documents"], case["heads"], case["length"], case["head_dim"])
    q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    result = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            with torch.no_grad():
                result[f"forward_{name}"] = timed(torch, run)
            out = run()
            result[f"backward_{name}"] = timed(torch, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    return result


def head(torch, case):
    functional = torch.nn.functional
    x = torch.randn(case["rows"], case["channels"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = (0.02 * torch.randn(case["vocabulary"], case["channels"], device="cuda")).bfloat16().requires_grad_()
    targets = torch.randint(case["vocabulary"], (case["rows"],), device="cuda")
    loss = lambda: functional.cross_entropy(functional.linear(x, w).float(), targets)
    result = {}
    for name, run in (("eager", loss), ("compile", torch.compile(loss))):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result[f"forward_backward_{name}"] = timed(torch, lambda: torch.autograd.grad(run(), (x, w)))
        result[f"peak_{name}"] = torch.cuda.max_memory_allocated() - before
    return result


def adamw(torch, case):
    # 124M and more elements in one tensor: the best case of a fused optimizer.
    p = torch.randn(case["parameters"], device="cuda", requires_grad=True)
    p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW([p], lr=1e-4, weight_decay=0.1, fused=True)
    return {"seconds_fused": timed(torch, optimizer.step)}


def norm(torch, case):
    gradient = torch.randn(case["parameters"], device="cuda")
    return {"seconds_any": timed(torch, lambda: torch.linalg.vector_norm(gradient))}


def embedding(torch, case):
    rows, vocabulary = case["rows"], case["vocabulary"]
    uniform = torch.arange(rows, device="cuda", dtype=torch.float64) * 40503 % 65536 / 65536
    ids = (vocabulary**uniform).long() - 1
    dx = torch.randn(rows, case["channels"], device="cuda")
    table = torch.zeros(vocabulary, case["channels"], device="cuda")
    return {"seconds_any": timed(torch, lambda: table.index_add_(0, ids, dx))}


def measure(programs, attention, *what):
    """The kernels' times; those of attention with our own kernels or with cuDNN's."""
    text = subprocess.check_output([os.path.join(programs, "gpu_kernels_bench"), *what], text=True,
                                   env=dict(os.environ, LLMTRAIN_ATTENTION=attention))
    cases = [json.loads(line) for line in text.splitlines()]
    if not cases:
        print(f"{' '.join(what)} by {attention}: nothing was measured")
    return [dict(case, by=attention) if case["what"] == "attention" else case for case in cases]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--programs", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("no torch here: PYTHON names an interpreter that has it")
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        sys.exit(77)
    peers = {"attention": attention, "head": head, "adamw": adamw, "norm": norm, "embedding": embedding}
    key = lambda case: tuple((k, v) for k, v in case.items() if isinstance(v, (int, str)))
    ours, theirs = {}, {}
    for _ in range(args.rounds):
        cases = measure(args.programs, "own") + measure(args.programs, "cudnn", "attention")
        for case in cases:
            ours.setdefault(key(case), []).append(case)
            theirs.setdefault(key(case), []).append(peers[case["what"]](torch, case))
            torch.cuda.empty_cache()
    median = lambda all, name: statistics.median(one[name] for one in all)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, medians of {args.rounds} rounds\n")
    for k, mine in ours.items():
        case, peer = mine[0], theirs[k]
        what = ", ".join(f"{name} {value}" for name, value in k if name not in ("what", "scratch"))
        if case["what"] == "attention":
            pairs = case["documents"] * case["heads"] * case["length"] * (case["length"] + 1) / 2
            for way, products in (("forward", 2), ("backward", 5)):
                flops = products * 2 * case["head_dim"] * pairs
                for backend in ("flash", "cudnn"):
                    a, b = median(mine, way), median(peer, f"{way}_{backend}")
                    print(f"attention {way}, {what}: {flops / a / 1e12:.0f} / {backend} {flops / b / 1e12:.0f} TFLOP/s = {b / a:.2f}")
        elif case["what"] == "head":
            for way in ("eager", "compile"):
                a, b = median(mine, "forward_backward"), median(peer, f"forward_backward_{way}")
                print(f"head, {what}: {way} {b * 1e3:.2f} ms / {a * 1e3:.2f} ms = {b / a:.2f}; peak "
                      f"{median(peer, 'peak_' + way) / 2**20:.0f} against {case['scratch'] / 2**20:.0f} MiB")
        elif case["what"] in ("norm", "embedding"):
            a, b = median(mine, "seconds"), median(peer, "seconds_any")
            print(f"{case['what']} in one order, {what}: {a * 1e3:.3f} ms, in any order {b * 1e3:.3f} ms = {a / b:.2f}")
        else:
            a, b = median(mine, "seconds"), median(peer, "seconds_fused")
            print(f"adamw, {what}: {median(mine, 'of_copy'):.2f} of a copy's rate; fused {b * 1e3:.2f} ms / {a * 1e3:.2f} ms = {b / a:.2f}")


if __name__ == "__main__":
    main()
