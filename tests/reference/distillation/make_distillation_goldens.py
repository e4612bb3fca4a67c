"""Writes divergences.json: losses between the distributions of a student and a teacher, and their gradients, in fp64.

    python make_distillation_goldens.py

Losses of all words are those of TRL (trl/experimental/gkd/gkd_trainer.py, generalized_jsd_loss: beta = 0 is the forward,
beta = 1 the reverse divergence). With top_k, whose loss TRL does not have, they are
written out: the teacher's k best words, renormalised, or with one more word for the rest (tail). Each case: the mean of
the loss over the tokens with a target, the gradient with respect to the student's logits, the mean probability that the
best words leave out.
"""

import json
import pathlib

import torch
import torch.nn.functional as F
import trl
from trl.experimental.gkd import GKDTrainer

ROWS, VOCABULARY, IGNORED = 5, 21, -100


def rounded(tensor):
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


def divergence(p, log_p, log_q, loss, beta):
    """Sum over words, of which those with p = 0 have log_p = -inf."""
    q = log_q.exp()
    if loss == "forward_kl" or (loss == "jsd" and beta == 0):
        return torch.where(p > 0, p * (log_p - log_q), 0).sum(-1)
    if loss == "reverse_kl" or (loss == "jsd" and beta == 1):
        return (q * (log_q - log_p)).sum(-1)
    log_m = (beta * p + (1 - beta) * q).log()
    of_teacher = torch.where(p > 0, p * (log_p - log_m), 0).sum(-1)
    return beta * of_teacher + (1 - beta) * (q * (log_q - log_m)).sum(-1)


def of_best(student, teacher, loss, beta, temperature, top_k, tail):
    log_q, log_p = F.log_softmax(student / temperature, -1), F.log_softmax(teacher / temperature, -1)
    best = log_p.topk(top_k).indices
    chosen = torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, best, True)
    outside = log_p.exp().masked_fill(chosen, 0).sum(-1)
    if tail:
        rest_q = log_q.exp().masked_fill(chosen, 0).sum(-1)
        log_p = torch.cat([log_p.gather(-1, best), outside.log()[:, None]], -1)
        log_q = torch.cat([log_q.gather(-1, best), rest_q.log()[:, None]], -1)
        p = log_p.exp()
    else:
        p = log_p.exp().masked_fill(~chosen, 0)
        p = p / p.sum(-1, keepdim=True)
        log_p = p.log()
    return divergence(p, log_p, log_q, loss, beta), outside


def main():
    torch.manual_seed(5)
    student, teacher = (2 * torch.randn(ROWS, VOCABULARY)).double(), (2 * torch.randn(ROWS, VOCABULARY)).double()
    targets = torch.tensor([4, 20, IGNORED, 0, 17])
    counted = targets != IGNORED
    cases = []
    losses = [("forward_kl", 0.5), ("reverse_kl", 0.5), ("jsd", 0.5), ("jsd", 0.1), ("jsd", 0), ("jsd", 1)]
    for loss, beta in losses:
        for temperature in (1, 2.5, 0.7):
            for top_k, tail in ((0, False), (6, False), (6, True), (1, True), (VOCABULARY, False)):
                reverse = loss == "reverse_kl" or beta == 1
                if (reverse and 0 < top_k < VOCABULARY and not tail) or (top_k > 0 and temperature == 0.7):
                    continue
                x = student.clone().requires_grad_()
                outside = torch.zeros(ROWS).double()
                if top_k == 0:
                    trl_beta = {"forward_kl": 0, "reverse_kl": 1, "jsd": beta}[loss]
                    value = GKDTrainer.generalized_jsd_loss(x[None], teacher[None], targets[None], trl_beta, temperature)
                else:
                    values, outside = of_best(x, teacher, loss, beta, temperature, top_k, tail)
                    value = values[counted].mean()
                value.backward()
                cases.append({"loss": loss, "beta": beta, "temperature": temperature, "top_k": top_k, "tail": tail,
                              "value": value.item(), "left_out": outside[counted].mean().item(),
                              "gradient": rounded(x.grad)})
    x = student.clone().requires_grad_()
    cross_entropy = F.cross_entropy(x, targets)
    cross_entropy.backward()
    agreement = (student.argmax(-1) == teacher.argmax(-1))[counted].double().mean().item()
    golden = {"made_by": f"torch {torch.__version__}, TRL {trl.__version__}", "rows": ROWS, "vocabulary": VOCABULARY,
              "student": rounded(student), "teacher": rounded(teacher), "targets": targets.tolist(), "cases": cases,
              "agreement": agreement,
              "cross_entropy": {"value": cross_entropy.item(), "gradient": rounded(x.grad)}}
    (pathlib.Path(__file__).parent / "divergences.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
