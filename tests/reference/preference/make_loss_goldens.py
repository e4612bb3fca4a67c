"""Preference losses and their derivatives by TRL's own trainers, for tests/objectives/preference_loss_test.cpp.

Writes losses.json: log-probabilities of pairs, and for each case the loss of every pair and its derivatives with respect
to the log-probability of each token's document. TRL's trainers get a model that returns given log-probabilities.
Made with trl 1.16.0, torch 2.15.0, Python 3.11, in fp64 (in fp32 where TRL
has no other); a second run writes the same bytes.
"""
import collections
import json
import pathlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer

# Log-probabilities of policy and reference, and lengths, of chosen and rejected documents.
PAIRS = [
    ((-12.5, -13.25, 7), (-20.0, -18.5, 11)),
    ((-3.0, -2.0, 2), (-1.0, -4.5, 3)),
    ((-40.0, -40.0, 25), (-40.0, -40.0, 25)),
    ((-7.5, -9.75, 4), (-90.0, -60.0, 31)),
    ((-0.5, -0.25, 1), (-2.0, -2.5, 1)),
    ((-300.0, -297.0, 64), (-150.0, -154.0, 40)),
]
CASES = [{"loss": name} for name in ("sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero",
                                     "apo_down", "discopop", "sigmoid_norm", "orpo", "simpo", "cpo")]
CASES += [{"loss": name, "beta": 0.5} for name in ("sigmoid", "hinge", "ipo", "sigmoid_norm", "orpo", "simpo", "cpo")]
CASES += [{"loss": name, "label_smoothing": 0.125} for name in ("robust", "exo_pair", "simpo", "cpo")]
for divergence in ("forward_kl", "js", "alpha"):
    CASES += [{"loss": name, "f_divergence": divergence} for name in ("sigmoid", "hinge", "ipo", "discopop")]
CASES.append({"loss": "sigmoid", "f_divergence": "alpha", "f_alpha": 2.0})
CASES.append({"loss": "sigmoid", "f_divergence": "alpha", "f_alpha": 1.0})


class Accelerator:
    device = torch.device("cpu")

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def unwrap_model(self, model):
        return model


def dpo_loss(case, chosen, rejected, pair):
    """The loss of one pair by DPOTrainer._compute_loss, whose documents are rows of tokens."""
    theirs = {"reverse_kl": "reverse_kl", "forward_kl": "forward_kl", "js": "js_divergence",
              "alpha": "alpha_divergence"}
    trainer = DPOTrainer.__new__(DPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator()
    trainer.args = SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None)
    trainer._metrics = {"train": collections.defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    trainer.aux_loss_enabled = trainer.use_weighting = False
    trainer.ld_alpha = None
    trainer.precompute_ref_logps = True
    trainer.beta, trainer.label_smoothing = case.get("beta", 0.1), case.get("label_smoothing", 0.0)
    trainer.f_divergence_type = theirs[case.get("f_divergence", "reverse_kl")]
    trainer.f_alpha_divergence_coef = case.get("f_alpha", 0.5)
    trainer.loss_types, trainer.loss_weights = [case["loss"]], [1.0]
    lengths = [pair[0][2], pair[1][2]]
    width = max(lengths)
    mask = torch.tensor([[0] + [1] * n + [0] * (width - n) for n in lengths])
    logps = torch.stack([F.pad((x / n).expand(n), (0, width - n)) for x, n in zip((chosen, rejected), lengths)])
    zeros = torch.zeros(2, width)
    outputs = SimpleNamespace(log_probs=logps, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    inputs = {"input_ids": torch.zeros(2, width + 1, dtype=torch.long), "attention_mask": torch.ones(2, width + 1),
              "completion_mask": mask, "ref_chosen_logps": torch.tensor([pair[0][1]]),
              "ref_rejected_logps": torch.tensor([pair[1][1]])}
    return trainer._compute_loss(lambda **_: outputs, inputs, False)


def loss_of(case, chosen, rejected, pair):
    name, beta = case["loss"], case.get("beta", 0.1)
    mean_chosen, mean_rejected = (chosen / pair[0][2])[None], (rejected / pair[1][2])[None]
    if name == "orpo":
        trainer = ORPOTrainer.__new__(ORPOTrainer)
        trainer.beta, trainer.accelerator = beta, Accelerator()
        return (-mean_chosen - trainer.odds_ratio_loss(mean_chosen, mean_rejected)[0]).mean()
    if name in ("simpo", "cpo"):
        trainer = CPOTrainer.__new__(CPOTrainer)
        trainer.beta, trainer.accelerator, trainer.alpha = beta, Accelerator(), 0.0
        trainer.simpo_gamma, trainer.label_smoothing = 0.5, case.get("label_smoothing", 0.0)
        trainer.loss_type = "simpo" if name == "simpo" else "sigmoid"
        if name == "simpo":
            return trainer.cpo_loss(mean_chosen, mean_rejected)[0].mean()
        return (trainer.cpo_loss(chosen[None], rejected[None])[0] - mean_chosen).mean()  # cpo_alpha = 1
    return dpo_loss(case, chosen, rejected, pair)


results = []
for case in CASES:
    torch.set_default_dtype(torch.float32 if case.get("f_divergence") == "alpha" else torch.float64)
    rows = []
    for pair in PAIRS:
        chosen, rejected = (torch.tensor(document[0], requires_grad=True) for document in pair)
        loss = loss_of(case, chosen, rejected, pair)
        gradients = torch.autograd.grad(loss, (chosen, rejected), allow_unused=True)
        rows.append([loss.item()] + [0.0 if g is None else g.item() for g in gradients])
    results.append({**case, "pairs": rows})
path = pathlib.Path(__file__).parent / "losses.json"
lines = ",\n  ".join(json.dumps(r, allow_nan=False) for r in results)
path.write_text('{"pairs": %s,\n "cases": [\n  %s]}\n' % (json.dumps(PAIRS), lines))
print(len(results), "cases")
