#!/usr/bin/env python3
"""preference_outcome.py LLMTRAIN LLMTOOL [--base FOLDER] [--ranks N] [--methods dpo,grpo,reward,ppo]: what learning from
preferences and rewards does to the quickstart's model.

The best answer is known: the same stories with the same probabilities, but with a happy feeling at the end, which the
corpus has in seven of twelve. Trains each method by the deck in inputs/ (and the base by inputs/quickstart.ini unless
FOLDER is an export of it), and prints for new prompts the share of happy endings, of endings with a word that the corpus
lacks, and the loss over the rest of the stories as a ratio to the entropy of their source; for the reward model its accuracy on
held-out pairs. Some fifteen minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile

INPUTS = pathlib.Path(__file__).resolve().parent.parent / "inputs"
HAPPY = "cheerful|glad|grateful|lucky|proud|safe|warm"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


class Outcome:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="preferences."))
        self.launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(options.ranks)] if options.ranks > 1 else []
        self.corpus("train", "1M", 1)
        held = [json.loads(line) for line in open(self.corpus("held", "120K", 77), encoding="utf-8")]
        self.prompts = self.folder / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in held[:options.prompts]))
        self.stories = self.folder / "stories.txt"
        self.stories.write_text("\n\n".join(row["prompt"].rstrip("\n") for row in held))
        self.words = set(re.findall(r"\w+", run(options.llmtool, "corpus", "stories", "--bytes", "2M", "--output", "-")))

    def corpus(self, name, size, seed):
        path = self.folder / f"{name}.jsonl"
        run(self.options.llmtool, "corpus", "preferences", "--bytes", size, "--seed", seed, "--output", path)
        return path

    def train(self, deck, *keys):
        run(*self.launcher, self.options.llmtrain, INPUTS / f"{deck}.ini", f"run.output={self.folder}", *keys)
        return self.folder / deck / "export"

    def base(self):
        if self.options.base:
            return self.options.base
        self.train("quickstart", "checkpoint.export=last")
        return self.folder / "quickstart/export"

    def measure(self, name, model):
        text = run(self.options.llmtool, "generate", "--model", model, "--prompt-file", self.prompts, "--max-new-tokens", 96, "--seed", 5)
        endings = [json.loads(line)["text"].strip() for line in text.splitlines()]
        happy = sum(bool(re.search(rf"\b({HAPPY})\.$", ending)) for ending in endings) / len(endings)
        unknown = sum(not set(re.findall(r"\w+", ending)) <= self.words for ending in endings) / len(endings)
        print(f"{name:8s} {happy:6.3f} {unknown:8.3f} {self.loss(model):22.4f}", flush=True)

    def loss(self, model):
        """Nats a token over stories without their last line."""
        deck = self.folder / "rest.ini"
        deck.write_text(f"[run]\ntask = evaluate\noutput = {self.folder}\noverwrite = true\n[model]\npath = {model}\n[data]\nvalidation = {self.stories}\n"
                        "document_separator = blank_line\npacking = none\n[batch]\nsequence_length = 512\nmicro = 8\n[evaluation]\nbatches = 0\n")
        run(self.options.llmtrain, deck)
        return json.loads((self.folder / "rest-evaluate/evaluation.json").read_text())["loss"]

    def reward_accuracy(self, model):
        held = self.folder / "held.jsonl"
        rows = [json.loads(line) for line in run(self.options.llmtool, "score", "--metric", "reward", "--model", model, "--input", held, "--json").splitlines()]
        pairs = [row for row in rows if "chosen" in row]
        return sum(row["chosen"] > row["rejected"] for row in pairs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain", type=pathlib.Path), parser.add_argument("llmtool", type=pathlib.Path)
    parser.add_argument("--base"), parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=200), parser.add_argument("--methods", default="dpo,grpo,reward,ppo")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    outcome = Outcome(options)
    base, train = outcome.base(), f"data.train={outcome.folder}/train.jsonl"
    print("model     happy  unknown  loss over the rest, nats")
    outcome.measure("base", base)
    for method in options.methods.split(","):
        keys = [f"model.path={base}", train]
        if method == "ppo":
            keys.append(f"ppo.reward_model={outcome.folder}/reward/export")
        model = outcome.train(method, *keys)
        if method == "reward":
            print(f"reward   accuracy {outcome.reward_accuracy(model):.4f} on held-out pairs", flush=True)
        else:
            outcome.measure(method, model)


if __name__ == "__main__":
    main()
