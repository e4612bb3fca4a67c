"""Orders by groups of equal length from Transformers, for tests/data/length_groups_test.cpp.

Writes lengths/grouped.json: lengths of samples, a random order of them, the samples of a step, and the order that
get_length_grouped_indices makes of that random order.
Made with torch 2.15.0, transformers 5.24.0, Python 3.11; a second run writes the same bytes.
"""
import json
import pathlib
import random

import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

random.seed(3)
cases = []
for count, batch in [(1, 1), (7, 2), (50, 3), (300, 1), (420, 2), (37, 37)]:
    lengths = [random.choice([1, 2, 3, 5, 8, 13, 21, 34]) for _ in range(count)]
    order = list(range(count))
    random.shuffle(order)
    torch.randperm = lambda n, generator=None, order=order: torch.tensor(order)
    grouped = [int(i) for i in get_length_grouped_indices(lengths, batch)]
    cases.append({"batch": batch, "lengths": lengths, "order": order, "grouped": grouped})
text = "[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]\n"
(pathlib.Path(__file__).parent / "lengths" / "grouped.json").write_text(text)
