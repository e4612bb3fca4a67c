"""Learning rates from Transformers' get_scheduler, for tests/optim/schedule_test.cpp.

Writes schedules/learning_rates.txt: one line per case and step,
    name warmup total peak key=value,... step rate(hex)
Made with torch 2.15.0, transformers 5.23.0, Python 3.11; a second run writes the same bytes.
"""
import pathlib

import torch
from transformers import get_scheduler

PEAK, TOTAL = 1e-3, 110
STEPS = [0, 1, 5, 9, 10, 11, 35, 60, 61, 85, 99, 108, 109, 110]
# (llmtrain's name, Transformers' name and keyword arguments, llmtrain's keys)
CASES = [
    ("constant", "constant", {}, {}),
    ("constant_with_warmup", "constant_with_warmup", {}, {}),
    ("linear", "linear", {}, {}),
    ("cosine", "cosine", {}, {}),
    ("cosine", "cosine", {"num_cycles": 1.0}, {"num_cycles": 1.0}),
    ("cosine_with_restarts", "cosine_with_restarts", {"num_cycles": 1}, {"num_cycles": 1}),
    ("cosine_with_restarts", "cosine_with_restarts", {"num_cycles": 3}, {"num_cycles": 3}),
    ("cosine_with_min_lr", "cosine_with_min_lr", {"min_lr": 1e-4}, {"min_learning_rate": 1e-4}),
    ("cosine_with_min_lr", "cosine_with_min_lr", {"min_lr": 2e-4, "num_cycles": 0.75},
     {"min_learning_rate": 2e-4, "num_cycles": 0.75}),
    ("polynomial", "polynomial", {}, {}),
    ("polynomial", "polynomial", {"power": 2.0, "lr_end": 1e-4}, {"power": 2.0, "lr_end": 1e-4}),
    ("inverse_sqrt", "inverse_sqrt", {}, {}),
    ("inverse_sqrt", "inverse_sqrt", {"timescale": 25}, {"timescale": 25}),
]
for decay in ("linear", "cosine", "1-sqrt"):
    for floor in (0.0, 0.125):
        CASES.append(("warmup_stable_decay", "warmup_stable_decay",
                      {"num_decay_steps": 30, "decay_type": decay, "min_lr_ratio": floor},
                      {"decay_steps": 30, "decay_type": decay, "min_learning_rate": floor * PEAK}))


def rates(name, arguments, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=TOTAL,
                             scheduler_specific_kwargs=arguments)
    out = []
    for _ in range(TOTAL + 1):
        out.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return out


lines = []
for name, theirs, arguments, keys in CASES:
    for warmup in (0, 10):
        values = rates(theirs, arguments, warmup)
        text = ",".join(f"{k}={v}" for k, v in keys.items()) or "-"
        lines += [f"{name} {warmup} {TOTAL} {PEAK} {text} {s} {float(values[s]).hex()}" for s in STEPS]
path = pathlib.Path(__file__).parent / "schedules" / "learning_rates.txt"
path.write_text("\n".join(lines) + "\n")
print(len(lines), "rates")
