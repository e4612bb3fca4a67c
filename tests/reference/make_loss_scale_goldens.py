"""What torch.amp.GradScaler makes of overflows, for tests/optim/loss_scale_test.cpp.

Writes loss_scale/grad_scaler.txt: per case a line
    case initial_scale growth_interval
and then one line per run of equal steps,
    times overflow(0/1) stepped(0/1) scale_after
A parameter's gradient is made infinite where the case says so; `stepped` is whether the optimizer changed it.
Made with torch 2.15.0 (CPU), Python 3.11; a second run writes the same bytes.
"""
import itertools
import pathlib
import random

import torch


def pattern(seed, steps, share):
    numbers = random.Random(seed)
    return [numbers.random() < share for _ in range(steps)]


# (initial scale, growth interval, overflows by step)
CASES = [
    (65536.0, 2000, [False] * 1999 + [True] + [False] * 4001),
    (65536.0, 2000, [True] * 3 + [False] * 2000),
    (1024.0, 1, pattern(1, 60, 0.4)),
    (1024.0, 3, pattern(2, 200, 0.2)),
    (3000.0, 5, pattern(3, 300, 0.12)),
    (2.0**125, 2, [False] * 12),
]


def steps(initial, interval, overflows):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=interval)
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale((parameter * 0.125).sum()).backward()
        if overflow:
            parameter.grad[1] = float("inf")
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        yield int(overflow), int(not torch.equal(before, parameter.detach())), scaler.get_scale()


def main():
    lines = []
    for initial, interval, overflows in CASES:
        lines.append(f"case {initial.hex()} {interval}")
        for (overflow, stepped, scale), group in itertools.groupby(steps(initial, interval, overflows)):
            lines.append(f"{sum(1 for _ in group)} {overflow} {stepped} {float(scale).hex()}")
    folder = pathlib.Path(__file__).parent / "loss_scale"
    folder.mkdir(exist_ok=True)
    (folder / "grad_scaler.txt").write_text("\n".join(lines) + "\n")


main()
