#!/usr/bin/env python3
"""cache_quality.py LLMTRAIN LLMTOOL [--steps N] [--texts N] [--budgets 0.5,0.3,...] [--folder DIR]: what a cache that keeps part of the keys costs.

A Llama of four layers over bytes is trained on three kinds of documents: a string of random letters that is repeated behind a bar (needle:
every letter lies far back), a short string that repeats itself (recency: all that counts is near), and stories. The prompt is the
first half of a document that training has not seen; the second half is written greedily, of stories sampled. The table has the share of letters that are
right, and the perplexity of the sampled stories under the model with all keys. A budget is a share of the prompt's keys: for h2o half of
it heavy hitters and half the last keys, for window four first keys and else the last ones.
"""
import argparse
import json
import math
import os
import pathlib
import random
import string
import subprocess
import tempfile

PROMPT = 97  # bytes


def needle(rng):
    text = "".join(rng.choice(string.ascii_uppercase) for _ in range(PROMPT - 1))
    return text + "|" + text


def recency(rng):
    period = "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.randint(5, 12)))
    return (period * 60)[: 2 * PROMPT - 1]


def run(*command, text=None):
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("llmtool")
    parser.add_argument("--steps", type=int, default=3000), parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--budgets", default="0.8,0.6,0.4,0.2,0.1"), parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="cache."))
    folder.mkdir(exist_ok=True)
    rng = random.Random(1)
    run(options.llmtool, "corpus", "stories", "--bytes", "4M", "--seed", 1, "--output", folder / "stories.txt")
    stories = (folder / "stories.txt").read_text(encoding="utf-8")
    pieces = [stories[i:i + 2 * PROMPT] for i in range(0, len(stories) - 2 * PROMPT, 2 * PROMPT)]
    kinds = {"needle": [needle(rng) for _ in range(15000)], "recency": [recency(rng) for _ in range(5000)], "stories": pieces[:10000]}
    held = {name: texts[-options.texts:] for name, texts in kinds.items()}
    rows = [text for texts in kinds.values() for text in texts[:-options.texts]]
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows), encoding="utf-8")
    (folder / "train.ini").write_text(
        f"[run]\noutput = {folder}\nname = model\nmax_steps = {options.steps}\n"
        "[model]\nfamily = llama\nd_model = 128\nn_layers = 4\nn_heads = 4\nmax_seq_len = 256\n"
        f"[data]\ntrain = {folder}/train.jsonl\ntokenizer = bytes\npacking = none\ncache = {folder}/cache\n[batch]\nsequence_length = 256\nmicro = 32\nglobal = 32\n"
        "[schedule]\nname = cosine\nlearning_rate = 2e-3\nwarmup_steps = 100\n[log]\nevery_steps = 100\n", encoding="utf-8")
    if not (folder / "export").exists():
        run(options.llmtrain, folder / "train.ini")
        run(options.llmtool, "export", folder / "model", "--output", folder / "export")
    for name, texts in held.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": text[:PROMPT]}) + "\n" for text in texts), encoding="utf-8")

    def written(name, keys):
        sampled = name == "stories"
        (folder / "generate.ini").write_text(
            f"[run]\ntask = generate\noutput = {folder}\nname = written\noverwrite = true\n[model]\npath = {folder}/export\n[precision]\ncompute = fp32\n"
            f"[generate]\nprompts = {folder}/{name}.jsonl\noutput = {folder}/written.jsonl\nmax_new_tokens = {PROMPT - 1}\ntemperature = {int(sampled)}\nids = true\n{keys}"
            f"[data]\ntokenizer = bytes\n[batch]\nsequence_length = 256\nmicro = {options.texts}\n", encoding="utf-8")
        (folder / "written.jsonl").unlink(missing_ok=True)
        run(options.llmtrain, folder / "generate.ini")
        return [json.loads(line) for line in (folder / "written.jsonl").read_text(encoding="utf-8").splitlines()]

    def row(label, keys):
        results = []
        for name in ("needle", "recency"):
            right = total = 0
            for text, line in zip(held[name], written(name, keys)):
                wanted = text[PROMPT:]
                right += sum(a == b for a, b in zip(wanted, line["text"]))
                total += len(wanted)
            results.append(f"{right / total:8.3f}")
        texts = written("stories", keys)
        ids = [list(line["prompt"].encode()) + line["ids"] for line in texts]
        scored = run(options.llmtool, "logprobs", "--model", folder / "export", text="".join(json.dumps({"input_ids": one}) + "\n" for one in ids))
        values = [value for line, text in zip(scored.splitlines(), texts) for value in json.loads(line)["logprobs"][len(text["prompt"].encode()) - 1:]]
        print(f"{label:<14}", *results, f"{math.exp(-sum(values) / len(values)):10.3f}", flush=True)

    print(f"{'cache':<14} {'needle':>8} {'recency':>8} {'perplexity':>10}")
    row("full", "")
    for share in options.budgets.split(","):
        keys = max(8, round(float(share) * PROMPT))
        row(f"h2o {share}", f"cache = h2o\nh2o_heavy = {keys // 2}\nh2o_recent = {keys - keys // 2}\n")
        row(f"window {share}", f"cache = window\nsinks = 4\nwindow = {keys - 4}\n")


if __name__ == "__main__":
    main()
