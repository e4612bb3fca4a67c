"""Writes losses.json: rows of token ids, some with labels, and the mean loss of each one's trained tokens under the
model of tests/reference/hf/llama, computed by Transformers in fp32.

    python make_loss_goldens.py          # torch 2.15, transformers 5.24
"""

import json
import pathlib
import random

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
IGNORED = -100


def make_row(draw):
    ids = [draw.randrange(41) for _ in range(draw.randrange(3, 16))]
    row = {"input_ids": ids}
    if draw.random() < 0.4:
        row["labels"] = [IGNORED] * 2 + ids[2:]
    return row


def main():
    draw = random.Random(5)
    rows = [make_row(draw) for _ in range(24)]
    model = AutoModelForCausalLM.from_pretrained(HERE.parent / "hf/llama", dtype=torch.float32).eval()
    losses = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
        targets = torch.tensor(row.get("labels", row["input_ids"])[1:])
        losses.append(round(torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED).item(), 6))
    text = ",\n".join(json.dumps({**row, "loss": loss}) for row, loss in zip(rows, losses))
    (HERE / "losses.json").write_text(f'{{"rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
