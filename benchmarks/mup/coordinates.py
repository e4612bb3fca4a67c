#!/usr/bin/env python3
"""coordinates.py LLMTRAIN LLMTOOL TEXT [--rate R] [--widths ...] [--seeds N] [--heads of_32|four] [deck keys ...]: the
coordinate check of muP.

Trains granites of several widths on TEXT with model.mup_base_width = the first width, and without it, at one rate, exports
the weights after 0, 1, 2, 4 and 10 updates, and lets Transformers compute 16 windows of TEXT with them. Prints the root mean
square of each layer's output, of its change since step 0, and by which power of the width both grow: 0 is flat. Then
compares Transformers' log-probabilities with those of llmtool. Needs torch and transformers; some three minutes on one core.
"""
import argparse
import collections
import json
import math
import pathlib
import shutil
import subprocess
import tempfile

import torch
import transformers

DECK = """[run]
max_steps = 11
[model]
family = granite
n_layers = 2
[data]
tokenizer = char
document_separator = blank_line
validation_fraction = 0
[batch]
sequence_length = 64
micro = 16
global = 16
[optimizer]
weight_decay = 0
[schedule]
name = constant_with_warmup      ; the first step's rate is 0: checkpoint N has N - 1 updates
warmup_steps = 1
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 1
keep = 11
[precision]
compute = fp32
"""
UPDATES = [0, 1, 2, 4, 10]
KINDS = ["embedding", "q_proj", "k_proj", "v_proj", "scores", "o_proj", "gate_proj", "up_proj", "down_proj", "last block",
         "logits"]


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"failed: {command}\n{done.stdout[-3000:]}")
    return done.stdout


def outputs(folder, text):
    """Returns the windows of tokens and, by kind of layer, what Transformers computes of them; layers of a kind together."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"][: 16 * 64]).view(16, 64)
    found = collections.defaultdict(list)

    def with_scores(module, query, key, value, mask, scaling, **others):
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = query @ keys.transpose(2, 3) * scaling
        found["scores"].append(scores[..., torch.ones(64, 64, dtype=torch.bool).tril()])
        return transformers.AttentionInterface()["sdpa"](module, query, key, value, mask, scaling=scaling, **others)

    transformers.AttentionInterface.register("with_scores", with_scores)
    transformers.AttentionMaskInterface.register("with_scores", transformers.masking_utils.sdpa_mask)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="with_scores")
    for name, module in model.named_modules():
        kind = name.split(".")[-1]
        if kind in KINDS:
            module.register_forward_hook(lambda _m, _i, output, kind=kind: found[kind].append(output))
    layers = model.model.layers
    layers[0].register_forward_pre_hook(lambda _m, inputs: found["embedding"].append(inputs[0]))
    model.model.norm.register_forward_pre_hook(lambda _m, inputs: found["last block"].append(inputs[0]))
    with torch.no_grad():
        found["logits"].append(model(tokens).logits)
    return tokens, {kind: torch.stack(found[kind]) for kind in KINDS}


def rms(tensor):
    return tensor.square().mean().sqrt().item()


def difference(llmtool, folder, tokens, logits):
    """Returns the largest difference between the log-probabilities of llmtool and those of `logits`."""
    rows = "".join(json.dumps({"input_ids": row.tolist()}) + "\n" for row in tokens)
    lines = run(llmtool, "logprobs", "--model", folder, input=rows).splitlines()
    ours = torch.tensor([json.loads(line)["logprobs"] for line in lines if line.startswith("{")])
    theirs = logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


def measure(options, work, text, width, base, seed):
    """Returns {(kind, updates): (rms, rms of the change)} of one run."""
    heads = width // 32 if options.heads == "of_32" else 4
    run(options.llmtrain, work / "deck.ini", f"run.output={work}", "run.name=run", f"run.seed={seed}", f"data.train={options.text}",
        f"model.d_model={width}", f"model.d_ff={3 * width}", f"model.n_heads={heads}", f"model.mup_base_width={base}",
        f"schedule.learning_rate={options.rate}", *options.keys)
    found, first, worst = {}, None, 0
    for updates in UPDATES:
        folder = work / "export"
        run(options.llmtool, "export", work / f"run/checkpoints/step-{updates + 1:08}", "--output", folder)
        tokens, values = outputs(folder, text)
        first = first or values
        for kind in KINDS:
            found[kind, updates] = rms(values[kind]), rms(values[kind] - first[kind])
        worst = max(worst, difference(options.llmtool, folder, tokens, values["logits"][0]))
        shutil.rmtree(folder)
    shutil.rmtree(work / "run")
    return found, worst


def power(widths, values):
    """Returns the slope of log(values) over log(widths)."""
    x, y = [math.log(width) for width in widths], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("llmtool"), parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--rate", default="0.008"), parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--heads", choices=["of_32", "four"], default="of_32", help="heads of 32 channels, or four heads")
    parser.add_argument("--key", dest="keys", action="append", default=[], help="section.key=value of the deck")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    text, worst = options.text.read_text(encoding="utf-8")[-3000:], 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "deck.ini").write_text(DECK)
        for base in (options.widths[0], 0):
            runs = collections.defaultdict(list)
            for width in options.widths:
                for seed in range(1, options.seeds + 1):
                    found, error = measure(options, work, text, width, base, seed)
                    worst = max(worst, error)
                    for (kind, updates), values in found.items():
                        runs[kind, updates, width].append(values)
            mean = {key: [sum(column) / len(column) for column in zip(*values)] for key, values in runs.items()}
            print(f"\nmup_base_width = {base}, rate {options.rate}, {options.heads}, {options.seeds} seeds {' '.join(options.keys)}")
            for what, title in enumerate(("root mean square", "root mean square of the change since step 0")):
                print(f"\n{title}\n{'layer':<12}{'updates':>8}" + "".join(f"{width:>10}" for width in options.widths) + f"{'power':>8}")
                for kind in KINDS:
                    for updates in UPDATES[what:]:
                        values = [mean[kind, updates, width][what] for width in options.widths]
                        row = "".join(f"{value:>10.4f}" for value in values)
                        print(f"{kind:<12}{updates:>8}{row}{power(options.widths, values):>8.2f}", flush=True)
    print(f"\nlargest difference between log-probabilities of llmtool and of Transformers: {worst:.1e}")


if __name__ == "__main__":
    main()
