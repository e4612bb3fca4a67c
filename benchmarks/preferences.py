#!/usr/bin/env python3
"""preferences.py LLMTRAIN DATA PYTHON [--cases A,B] [--peer A,B] [--rounds N] [--steps N] [--layers N] [--outcome-steps N]
[--busy]: learning from preferences and rewards beside TRL and Transformers at their best settings, on the same model, rows
and settings.

dpo, dpo lora: 8 pairs of DATA/dpo/hh_helpful.jsonl a step, two micro-batches; llmtrain caches the reference, the peer's
settings compute it before the first step or, the default, have it as a second model. grpo: rollout and update, 4 prompts with
8 completions of 128 tokens; the peer generates with a growing cache, a static one, compiled, or by continuous batching.
rollouts: 32 completions of 128 tokens beside Transformers' generate. A model of Llama's shape with random weights (hidden
size 1024). The rounds, the choice of the settings and the checks are those of fine_tuning.py; completions are random, so
that of GRPO the numbers of tokens and the mean entropy must agree, of rollouts the numbers alone.
Outcome (case hh): accuracy of a reward model and margins of DPO on the last 200 of the helpful pairs below 1,200 characters,
a model of 4 layers and 256 channels trained from random weights, fp32; losses of DPO must agree.
PYTHON has torch, transformers, trl, peft and datasets.
"""
import json
import math
import re
import sys

from fine_tuning import LORA, Bench, make_model, make_parser, read_rows
from peer_rounds import WARM, checked

CASES = ["dpo", "dpo lora", "grpo", "rollouts", "hh"]
DPO_BOUND = {"fp32": 2e-3, "bf16": 5e-2}  # of a loss, a difference of sums over hundreds of tokens
NEAR = 0.02  # limit of the distance of tokens and entropies of random completions


def check_completions(own, peer, name, _):
    """Mean tokens a step, and the mean entropy of the first step in nats."""
    pairs = [("tokens a step", *(sum(side["tokens"]) / len(side["tokens"]) for side in (own, peer)))]
    if "entropies" in peer:
        pairs.append(("entropy", own["entropies"][0], peer["entropies"][0]))
    for what, a, b in pairs:
        if not math.isclose(a, b, rel_tol=NEAR):
            sys.exit(f"{what}: llmtrain {a} and {name} {b} differ by more than {NEAR}")


class Preferences(Bench):
    def __init__(self, options):
        super().__init__(options)
        self.pairs = read_rows(options.data / "dpo/hh_helpful.jsonl")

    def shorter(self, characters):
        return [pair for pair in self.pairs if max(len(pair["prompt"] + pair[key]) for key in ("chosen", "rejected")) < characters]

    def dpo(self, title):
        rows = self.write("pairs.jsonl", self.shorter(1200)[:self.options.steps * 8])
        peers, default = self.settings(["precomputed", "precomputed+grouped"])
        lora = title == "dpo lora"
        rate = 1e-3 if lora else 1e-4
        keys = ["run.task=dpo", "dpo.cache_reference=true", f"schedule.learning_rate={rate}", *(LORA if lora else [])]
        adapter = {"adapter": f"{self.base}-adapter"} if lora else {}
        self.compete(title, "dpo", keys, rows, peers, default, DPO_BOUND[self.precision], rate=rate, **adapter)

    def prompts(self):
        return self.write("prompts.jsonl", [{"prompt": pair["prompt"]} for pair in self.pairs if len(pair["prompt"]) < 1000][:32])

    def generation(self, ways):
        best = "fp32" if self.precision == "fp32" else "bf16"
        peers = [way + best for way in ways]
        return ["default", *(self.options.peer.split(",") if self.options.peer else peers)], best

    def grpo(self, title):
        peers, best = self.generation(["", "static+", "compile+static+", "continuous+"])
        keys = ["run.task=grpo", "batch.micro=8", "batch.global=32", "grpo.group_size=8", f"rollout.max_new_tokens={self.options.new}",
                "rewards.functions=length:64", "schedule.learning_rate=1e-6"]
        default = "autocast" if best == "bf16" else best
        self.compete(title, "grpo", keys, self.prompts(), peers, default, check=check_completions, micro=8, accumulate=4,
                     new=self.options.new, rate=1e-6)

    def rollouts(self, title):
        peers, best = self.generation(["", "static+", "compile+static+"])
        keys = ["run.task=grpo", "run.max_steps=1", "batch.micro=8", "batch.global=32", "grpo.group_size=2",
                f"rollout.max_new_tokens={self.options.new}", "rewards.functions=length:64"]
        prompts = self.prompts()

        def own():
            result = self.llmtrain(prompts, *keys)
            rate = float(re.search(r"([\d.e+]+) tokens/s\)", result["output"]).group(1))
            return dict(result, speed=rate, step=sum(result["tokens"]) / rate, losses=[])

        self.compete(title, "generate", keys, prompts, peers, best, check=check_completions, own=own, new=self.options.new)

    def outcome(self):
        """Trains on all pairs but the last ones, and measures these."""
        small = self.folder / "small"
        make_model(self.options.python, self.options.data / "tokenizer" / self.options.tokenizer, small, 4, 256)
        pairs, steps = self.shorter(1200), self.options.outcome_steps  # TRL drops longer ones
        rows, held = self.write("train.jsonl", pairs[:-self.options.held]), self.write("held.jsonl", pairs[-self.options.held:])
        for task in ("reward", "dpo"):
            lines = self.llmtrain(rows, f"run.task={task}", f"model.path={small}", f"data.validation={held}", "batch.global=16", "batch.micro=8",
                                  f"run.max_steps={steps}", "schedule.learning_rate=1e-4", "evaluation.at_end=true", "evaluation.batches=0",
                                  "precision.compute=fp32")["lines"]
            own = next(line for line in reversed(lines) if any("validation" in key for key in line))
            peer = self.peer(task, "fp32", rows, base=str(small), held=str(held), steps=steps, accumulate=4, rate=1e-4)["held"]
            print(f"{task}, held-out pairs\n  llmtrain {json.dumps(own)}\n  TRL      {json.dumps(peer)}", flush=True)
            if task == "dpo" and not math.isclose(own["validation_loss"], peer["eval_loss"], rel_tol=DPO_BOUND["fp32"]):
                sys.exit("the losses of DPO over held-out pairs differ")


def main():
    parser = make_parser(__doc__, CASES, layers=6)
    parser.add_argument("--outcome-steps", type=int, default=200)
    parser.add_argument("--held", type=int, default=200, help="pairs that the outcome measures")
    parser.add_argument("--new", type=int, default=128, help="tokens of a completion")
    bench = Preferences(parser.parse_args())
    cases = {"dpo": bench.dpo, "dpo lora": bench.dpo, "grpo": bench.grpo, "rollouts": bench.rollouts, "hh": lambda _: bench.outcome()}
    for case in bench.options.cases.split(","):
        cases[case](case)


if __name__ == "__main__":
    main()
