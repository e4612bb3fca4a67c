"""Writes terms.json: losses with z-loss, label smoothing and an entropy bonus, and the loss of dynamic fine-tuning, and
their gradients, by torch in fp64.

    python make_term_goldens.py

Each case: coefficients; the terms' weighted means over the tokens with a target; the gradient of the loss with respect
to the logits. The loss of dynamic fine-tuning is written as in TRL 1.16.0 (trl/trainer/sft_trainer.py).
"""

import json
import pathlib

import torch
import torch.nn.functional as F

ROWS, VOCABULARY, IGNORED = 6, 11, -100
CASES = [(0, 0.1, 0), (0.01, 0, 0), (0, 0, 0.05), (0.003, 0.2, 0.02)]


def rounded(tensor):
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


def dynamic(logits, targets):
    """The mean over the tokens with a target of -p log p, where p is a constant, and its gradient."""
    x = logits.clone().requires_grad_()
    counted = targets != IGNORED
    log_probs = torch.log_softmax(x[counted], -1).gather(-1, targets[counted][:, None]).squeeze(-1)
    loss = (-log_probs * log_probs.exp().detach()).mean()
    loss.backward()
    return {"values": {"loss": loss.item(), "cross_entropy": -log_probs.mean().item()}, "gradient": rounded(x.grad)}


def main():
    torch.manual_seed(3)
    logits = (3 * torch.randn(ROWS, VOCABULARY)).double()
    targets = torch.tensor([4, 0, IGNORED, 10, 7, 7])
    cases = []
    for z, smoothing, bonus in CASES:
        x = logits.clone().requires_grad_()
        counted = targets != IGNORED
        plain = F.cross_entropy(x, targets)
        smoothed = F.cross_entropy(x, targets, label_smoothing=smoothing)
        z_loss = z * torch.logsumexp(x, -1)[counted].square().mean()
        entropy = torch.distributions.Categorical(logits=x).entropy()[counted].mean()
        loss = smoothed + z_loss - bonus * entropy
        loss.backward()
        cases.append({"z_loss": z, "label_smoothing": smoothing, "entropy_bonus": bonus,
                      "values": {"loss": loss.item(), "cross_entropy": plain.item(), "z_loss": z_loss.item(),
                                 "label_smoothing": (smoothed - plain).item(), "entropy": entropy.item()},
                      "gradient": rounded(x.grad)})
    golden = {"made_by": f"torch {torch.__version__}", "rows": ROWS, "vocabulary": VOCABULARY,
              "logits": rounded(logits), "targets": targets.tolist(), "cases": cases,
              "dynamic": dynamic(logits, targets)}
    (pathlib.Path(__file__).parent / "terms.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
