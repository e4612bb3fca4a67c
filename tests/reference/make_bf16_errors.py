"""Writes models/bf16_errors.txt: how far PyTorch's bf16 autocast is from its fp32, as root mean squares over 16 batches.

    python make_bf16_errors.py            # all cases; or name some: the other lines stay

One batch may be right by chance, or wrong: where a ReLU's input is near zero, one rounding changes a whole row. Each line:
the case; the L2 distance of the logits over their L2 norm; the square root of the summed squares of all tensors' relative
gradient errors. An expert without tokens in fp32 is left out there.
"""

import pathlib
import sys

import numpy as np
import torch

import hugging_face
from make_model_goldens import CASES, autocast, first_pass, random_batch, reference, relative, without_zeros
from shapes import random_parameters

BATCHES = 16


def errors(s, lengths, packed):
    """of logits and gradients of every batch, each (BATCHES,)"""
    parameters = random_parameters(s, 1)
    model = hugging_face.build(s)
    logit_errors, gradient_errors = [], []
    for batch in range(1, BATCHES + 1):
        documents, targets = random_batch(np.random.default_rng([1, batch]), lengths, packed)
        run = reference(model, s, documents)
        exact_pass, _, exact = first_pass(s, parameters, run, targets)
        low_pass, _, low = first_pass(s, parameters, autocast(run), targets)
        logit_errors.append(relative(low_pass.logits, exact_pass.logits))
        pairs = [(without_zeros(s, n, low[n]), without_zeros(s, n, g)) for n, g in exact.items() if g.any()]
        gradient_errors.append(np.sqrt(sum(relative(a, b) ** 2 for a, b in pairs)))
    return np.array(logit_errors), np.array(gradient_errors)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = pathlib.Path(__file__).parent / "models" / "bf16_errors.txt"
    lines = {line.split()[0]: line for line in path.read_text().splitlines()} if sys.argv[1:] else {}
    for name in sys.argv[1:] or CASES:
        rms = [np.sqrt(np.mean(e**2)) for e in errors(*CASES[name])]
        lines[name] = f"{name} {rms[0]:.4e} {rms[1]:.4e}"
        print(lines[name], flush=True)
    path.write_text("".join(f"{lines[name]}\n" for name in sorted(lines)))


if __name__ == "__main__":
    main()
