"""Rewards of several functions that leave completions out, by TRL's own lines, for tests/rollout/reward_sums_test.cpp.

Writes rewards.json: sums, advantages and metrics of GRPOTrainer and RLOOTrainer of TRL 1.16, which runs in fp64 here; a
second run writes the same bytes. Made with trl 1.16.0, torch 2.15.0, Python 3.11.
"""
import collections
import inspect
from types import SimpleNamespace

import torch
from make_policy_goldens import cut, nanstd, write
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

NONE = float("nan")
GROUP = 4
FUNCTIONS = [  # a number or None for each completion: groups where some, all but one, all, and none are left out
    [1.0, NONE, 0.5, NONE, 2.0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 0.25, 0.25, 3.0, -1.0, 1.0, 1.0, NONE, 1.0],
    [NONE, NONE, 2.0, -1.5, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 1.0, 0.5, 0.0, 2.5, NONE, NONE, NONE, NONE],
]
WEIGHTS = [1.0, 0.5]


def run(owner, last, **settings):
    source = inspect.getsource(owner._generate_and_score_completions)
    fake = SimpleNamespace(reward_weights=torch.tensor(WEIGHTS), reward_func_names=["first", "second"],
                           _metrics={"train": collections.defaultdict(list)}, **settings)
    per_function = torch.tensor(FUNCTIONS).T.contiguous()
    names = {"self": fake, "rewards_per_func": per_function, "num_generations": GROUP, "torch": torch, "device": "cpu",
             "nanstd": nanstd, "mode": "train", "gather": lambda x: x}
    exec(cut(source, "unscorable_mask =", last), names)
    exec(cut(source, "for i, reward_func_name in", "# Log prompts and completions"), names)
    numbers = lambda values: [None if value != value else value for value in values]
    return {"rewards": numbers(names["rewards"].tolist()), "advantages": names["advantages"].tolist(),
            "metrics": {name: numbers(values)[0] for name, values in fake._metrics["train"].items()}}


if __name__ == "__main__":
    cases = [{"loss": "grpo", "scale_rewards": scale,
              **run(GRPOTrainer, "# Slice to keep only", scale_rewards=scale,
                    multi_objective_aggregation="sum_then_normalize")} for scale in ("group", "batch", "none")]
    cases.append({"loss": "rloo", "scale_rewards": "none",
                  **run(RLOOTrainer, "# Slice to keep only", reward_clip_range=None, beta=0.0,
                        normalize_advantages=False)})
    functions = [[None if one != one else one for one in function] for function in FUNCTIONS]
    write("rewards.json", {"group_size": GROUP, "functions": functions, "weights": WEIGHTS, "cases": cases})
