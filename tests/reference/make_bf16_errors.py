"""Writes models/bf16_errors.txt: how far PyTorch's bf16 autocast is from its fp32, as root mean squares over 16 batches.

    python make_bf16_errors.py

One batch may be right by chance, or wrong: where a ReLU's input is near zero, one rounding changes a whole row. Each line:
the case; the L2 distance of the logits over their L2 norm; the square root of the summed squares of all tensors' relative
gradient errors.
"""

import pathlib

import numpy as np
import torch

import decoder
import hugging_face
from make_model_goldens import CASES, autocast, first_pass, random_batch, relative, without_zeros
from shapes import random_parameters

BATCHES = 16


def errors(s, lengths, packed):
    """of logits and gradients of every batch, each (BATCHES,)"""
    parameters = random_parameters(s, 1)
    model = hugging_face.build(s)
    logit_errors, gradient_errors = [], []
    for batch in range(1, BATCHES + 1):
        documents, targets = random_batch(np.random.default_rng([1, batch]), lengths, packed)

        def run(p):
            if model is None:
                return torch.cat([decoder.decode(p, s, d) for d in documents])
            return hugging_face.decode(model, s, p, documents)

        exact_logits, _, exact = first_pass(parameters, run, targets)
        low_logits, _, low = first_pass(parameters, autocast(run), targets)
        logit_errors.append(relative(low_logits, exact_logits))
        gradient_errors.append(np.sqrt(sum(
            relative(without_zeros(s, n, low[n]), without_zeros(s, n, exact[n])) ** 2 for n in exact)))
    return np.array(logit_errors), np.array(gradient_errors)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with open(pathlib.Path(__file__).parent / "models" / "bf16_errors.txt", "w") as f:
        for name, (s, lengths, packed) in sorted(CASES.items()):
            rms = [np.sqrt(np.mean(e**2)) for e in errors(s, lengths, packed)]
            line = f"{name} {rms[0]:.4e} {rms[1]:.4e}"
            print(line, flush=True)
            print(line, file=f)


if __name__ == "__main__":
    main()
