"""Writes goldens.json: losses of ../hf/<model> on a sequence of ids by the loop of Transformers' guide "Perplexity of
fixed-length models", every target weighted alike (the guide's own weights are off by one target a window), and by
disjoint windows of T inputs and T targets.

    python make_evaluation_goldens.py

torch 2.15.0, transformers 5.23.0, Python 3.11.
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
LENGTH = 75
IDS = [(3 * i * i + 7 * i + i // 5) % 41 for i in range(LENGTH)]


def log_probabilities(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


def score(model, windows):
    """Windows of (begin, end, first target that counts)."""
    loss, tokens, correct = 0.0, 0, 0
    for begin, end, first in windows:
        logp = log_probabilities(model, IDS[begin:end - 1])
        for target in range(max(first, begin + 1), end):
            row = logp[target - begin - 1]
            loss -= row[IDS[target]].item()
            correct += int(row.argmax().item() == IDS[target])
            tokens += 1
    return dict(loss=loss / tokens, tokens=tokens, correct=correct)


def guide(length, stride):
    windows, previous = [], 0
    for begin in range(0, LENGTH, stride):
        end = min(begin + length, LENGTH)
        windows.append((begin, end, previous))
        previous = end
        if end == LENGTH:
            break
    return windows


def main():
    cases = []
    for name in ("llama", "gpt2_published"):
        model = AutoModelForCausalLM.from_pretrained(HERE.parent / "hf" / name, dtype=torch.float32,
                                                     attn_implementation="eager")
        model.eval()
        for stride in (0, 1, 5, 8, 16):
            length = 16
            disjoint = [(b, min(b + length + 1, LENGTH), 0) for b in range(0, LENGTH - 1, length)]
            windows = guide(length, stride) if stride else disjoint
            cases.append(dict(model=name, sequence_length=length, stride=stride, **score(model, windows)))
    (HERE / "goldens.json").write_text(json.dumps(dict(ids=IDS, cases=cases), indent=1) + "\n")


if __name__ == "__main__":
    main()
