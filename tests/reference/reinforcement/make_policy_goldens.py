"""Losses and advantages of reinforcement by TRL's own lines, for tests/objectives/{policy_loss,advantages}_test.cpp.

Writes grpo.json and rloo.json from the trainers of TRL 1.16, and ppo.json from that of TRL 0.24, the last version with
one, whose folder is the argument (a wheel, unpacked). Trainers get log-probabilities instead of a model; lines in the
middle of long methods are cut out of their source and run. In fp64; a second run writes the same bytes.
Made with trl 1.16.0 and 0.24.0, torch 2.15.0, Python 3.11.
"""
import inspect
import json
import pathlib
import sys
import textwrap
from types import SimpleNamespace

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import nanstd

HERE = pathlib.Path(__file__).parent
LENGTHS = [5, 1, 7, 3, 6, 4]
LONGEST = 9  # tokens
torch.set_default_dtype(torch.float64)


def cut(source, first, last):
    """Lines of `source` from the one that begins with `first` to before the next that begins with `last`."""
    lines = source.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i in range(begin + 1, len(lines)) if lines[i].strip().startswith(last))
    return textwrap.dedent("\n".join(lines[begin:end]))


def rounded(x):
    """The numbers that fp32 holds."""
    return x.float().double()


def flat(x):
    """Tokens of completions, without padding."""
    return [value for row, length in zip(x.tolist(), LENGTHS) for value in row[:length]]


def columns(generator):
    """Padded [completions, tokens] columns: ratios on both sides of every clip, and some of exactly 1."""
    shape = (len(LENGTHS), max(LENGTHS))
    old = -3 * torch.rand(shape, generator=generator)
    step = torch.randn(shape, generator=generator) * 0.35
    step[:, ::4] = 0
    reference = old + torch.randn(shape, generator=generator) * 0.3
    entropy = 2 * torch.rand(shape, generator=generator)
    return rounded(old), rounded(old) + rounded(step), rounded(reference), rounded(entropy)


def trainer(case, logp, entropy):
    kind = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1)
    args = SimpleNamespace(delta=case.get("delta"), use_bias_correction_kl=False, steps_per_generation=1)
    return SimpleNamespace(
        args=args, accelerator=kind, aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", beta=case.get("beta", 0.0), loss_type=case["loss"], use_vllm=False,
        epsilon_low=case.get("epsilon", 0.2), epsilon_high=case.get("epsilon_high", case.get("epsilon", 0.2)),
        max_completion_length=LONGEST, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True), _metrics={"train": __import__("collections").defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, entropy, None))


def policy_losses(owner, cases, seed):
    old, new, reference, entropy = columns(torch.Generator().manual_seed(seed))
    advantages = torch.tensor([0.75, -1.5, 1.25, -0.5, 0.0, -2.0])
    mask = torch.tensor([[int(t < length) for t in range(max(LENGTHS))] for length in LENGTHS])
    inputs = {"prompt_ids": mask[:, :1], "prompt_mask": mask[:, :1], "completion_ids": mask, "completion_mask": mask,
              "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference,
              "old_logps": (old * mask).sum(1), "num_items_in_batch": mask.sum()}
    done = []
    for case in cases:
        logp = new.clone().requires_grad_()
        fake = trainer(case, logp, entropy)
        loss = owner._compute_loss(fake, None, inputs)
        loss.backward()
        metrics = {name: values[0] for name, values in fake._metrics["train"].items() if "_m" not in name[-4:-2]}
        done.append({**case, "value": loss.item(), "slopes": flat(logp.grad), "metrics": metrics})
    return {"lengths": LENGTHS, "longest": LONGEST, "old": flat(old), "logp": flat(new), "reference": flat(reference),
            "entropy": flat(entropy), "advantages": advantages.tolist(), "cases": done}


REWARDS = [1.0, 0.0, 0.5, 0.25, 2.0, 2.0, 2.0, 2.0, -1.5, float("nan"), 0.75, 3.0]


def grpo_advantages():
    lines = cut(inspect.getsource(GRPOTrainer._generate_and_score_completions), "unscorable_mask =",
                "# Slice to keep only")
    done = []
    for scale in ("group", "batch", "none"):
        fake = SimpleNamespace(multi_objective_aggregation="sum_then_normalize", scale_rewards=scale,
                               reward_weights=torch.ones(1))
        names = {"self": fake, "rewards_per_func": torch.tensor(REWARDS)[:, None], "num_generations": 4, "torch": torch,
                 "device": "cpu", "nanstd": nanstd}
        exec(lines, names)
        done.append({"scale_rewards": scale, "advantages": names["advantages"].tolist()})
    return done


def rloo_advantages(losses):
    lines = cut(inspect.getsource(RLOOTrainer._generate_and_score_completions), "unscorable_mask =",
                "is_std_zero =")
    done = []
    for beta in (0.0, 0.05):
        pad = lambda values: torch.nn.utils.rnn.pad_sequence(list(torch.tensor(values).split(LENGTHS)), batch_first=True)
        mask = pad([1.0] * sum(LENGTHS))
        fake = SimpleNamespace(reward_weights=torch.ones(1), reward_clip_range=None, beta=beta,
                               normalize_advantages=False)
        names = {"self": fake, "rewards_per_func": torch.tensor(REWARDS[:6])[:, None], "num_generations": 3,
                 "torch": torch, "device": "cpu", "nanstd": nanstd, "gather": lambda x: x, "completion_mask": mask,
                 "old_per_token_logps": pad(losses["old"]), "ref_per_token_logps": pad(losses["reference"])}
        exec(lines, names)
        done.append({"beta": beta, "advantages": names["advantages"].tolist()})
    return done


def ppo_names(trl):
    names = {"torch": torch}
    core = (trl / "core.py").read_text()
    for function in ("masked_mean", "masked_var", "masked_whiten"):
        exec(cut(core, f"def {function}(", "def " if function != "masked_whiten" else "class ").replace(
            "Optional[bool]", "bool"), names)
    return names


def ppo_args(**changes):
    return SimpleNamespace(**{"kl_coef": 0.05, "kl_estimator": "k1", "whiten_rewards": False, "gamma": 1.0, "lam": 0.95,
                              "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1, **changes})


def ppo_rollout(source, helpers, args, columns_, scores):
    """TRL's lines for each completion alone, and its whitening over the tokens of all: without padding."""
    rewards_of = cut(source, "logr = ref_logprobs - logprobs", "# 5. whiten rewards")
    estimate = cut(source, "lastgaelam = 0", "advantages = masked_whiten")
    whiten = helpers["masked_whiten"]
    rewards, kls = [], []
    for logp, reference, score in zip(columns_["logp"], columns_["reference"], scores):
        last = torch.tensor([logp.numel() - 1])
        names = {**helpers, "args": args, "ref_logprobs": reference[None], "logprobs": logp[None], "scores": score[None],
                 "sequence_lengths": last, "sequence_lengths_p1": last + 1}
        exec(rewards_of, names)
        rewards.append(names["rewards"][0])
        kls.append(names["kl"].sum())
    lengths = [one.numel() for one in rewards]
    if args.whiten_rewards:
        joined = torch.cat(rewards)
        rewards = whiten(joined, torch.ones_like(joined), shift_mean=False).split(lengths)
    advantages, returns = [], []
    for reward, value in zip(rewards, columns_["value"]):
        names = {**helpers, "args": args, "rewards": reward[None], "values": value[None], "responses": value[None]}
        exec(estimate, names)
        advantages.append(names["advantages"][0])
        returns.append(names["returns"][0])
    joined = torch.cat(advantages)
    return {"advantages": whiten(joined, torch.ones_like(joined)).tolist(), "returns": torch.cat(returns).tolist(),
            "kl": torch.stack(kls).mean().item()}


def ppo(trl):
    source = (trl / "trainer" / "ppo_trainer.py").read_text()
    helpers = ppo_names(trl)
    generator = torch.Generator().manual_seed(5)
    old, new, reference, entropy = columns(generator)
    values = rounded(torch.randn(old.shape, generator=generator))
    predicted = rounded(values + 0.3 * torch.randn(old.shape, generator=generator))
    returns = rounded(values + torch.randn(old.shape, generator=generator))
    scores = torch.tensor([1.5, -0.25, 0.75, 2.0, -3.0, 0.5])
    parts = {name: [row[:length] for row, length in zip(x, LENGTHS)]
             for name, x in (("logp", old), ("reference", reference), ("value", values))}
    rollouts = []
    for changes in ({}, {"kl_estimator": "k3", "gamma": 0.9}, {"whiten_rewards": True, "lam": 0.5},
                    {"kl_coef": 0.5, "lam": 1.0}):
        rollouts.append({**changes, **ppo_rollout(source, helpers, ppo_args(**changes), parts, scores)})
    one = torch.tensor([flat(old)]), torch.tensor([flat(values)]), torch.tensor([flat(returns)])
    advantage = rounded(torch.randn((1, sum(LENGTHS)), generator=generator))
    losses = cut(source, "vpredclipped = torch.clamp(", "accelerator.backward(loss)")
    statistics = cut(source, "pg_clipfrac = masked_mean(", "prob_dist =")
    cases = []
    for changes in ({}, {"cliprange": 0.1, "cliprange_value": 0.05, "vf_coef": 0.5}):
        logp = torch.tensor([flat(new)], requires_grad=True)
        value = torch.tensor([flat(predicted)], requires_grad=True)
        none = torch.zeros((1, sum(LENGTHS)), dtype=torch.bool)
        names = {**helpers, "args": ppo_args(**changes), "vpred": value, "mb_values": one[1], "mb_return": one[2],
                 "new_logprobs": logp, "mb_logprobs": one[0], "mb_advantage": advantage, "padding_mask": none,
                 "padding_mask_p1": none, "micro_batch_inds": slice(None)}
        exec(losses, names)
        exec(statistics, names)
        exec(cut(source, "approxkl = 0.5", "approxkl_stats["), names)
        names["loss"].backward()
        cases.append({**changes, "value": names["loss"].item(), "logp_slopes": logp.grad[0].tolist(),
                      "value_slopes": value.grad[0].tolist(),
                      "metrics": {"losses/policy_avg": names["pg_loss"].item(), "losses/value_avg": names["vf_loss"].item(),
                                  "policy/approxkl_avg": names["approxkl"].item(),
                                  "policy/clipfrac_avg": names["pg_clipfrac"].item(),
                                  "val/clipfrac_avg": names["vf_clipfrac"].item(),
                                  "val/ratio": names["ratio"].mean().item()}})
    return {"lengths": LENGTHS, "old": flat(old), "logp": flat(new), "reference": flat(reference),
            "entropy": flat(entropy), "old_values": flat(values), "value": flat(predicted), "returns": flat(returns),
            "advantages": advantage[0].tolist(), "scores": scores.tolist(), "cases": cases, "rollouts": rollouts}


GRPO = [{"loss": name, "beta": beta} for name in ("grpo", "bnpo", "dr_grpo", "dapo") for beta in (0.0, 0.04)]
GRPO += [{"loss": "dapo", "epsilon_high": 0.28}, {"loss": "grpo", "epsilon": 0.1, "epsilon_high": 0.15, "delta": 1.4}]


def write(name, content):
    (HERE / name).write_text(json.dumps(content, allow_nan=False) + "\n")


if __name__ == "__main__":
    grpo = policy_losses(GRPOTrainer, GRPO, 3)
    rewards = [None if one != one else one for one in REWARDS]
    write("grpo.json", {**grpo, "rewards": rewards, "group_size": 4, "completions": grpo_advantages()})
    rloo = policy_losses(RLOOTrainer, [{"loss": "rloo"}, {"loss": "rloo", "epsilon": 0.9, "epsilon_high": 4.0}], 4)
    write("rloo.json", {**rloo, "rewards": rewards[:6], "group_size": 3, "completions": rloo_advantages(rloo)})
    write("ppo.json", ppo(pathlib.Path(sys.argv[1])))
