#!/usr/bin/env python3
"""batched_generation.py LLMTRAIN DATA PYTHON [--rounds N] [--batches 1,32] [--new N] [--compute fp32|bf16]: run.task = generate beside
Transformers' generate.

A model of Llama's shape with 110 million random weights (hidden size 768, 12 layers) continues prompts of 64 tokens greedily, as many
side by side as a batch has. Tokens a second are differences between runs of one new token and of many, so that starting,
loading and most of the prompts do not count; the tokens of both must be equal for the most part (random weights have near
ties). Also the share of the memory bound at batch 1: bytes of all weights but the embedding's rows, a token, over the machine's
speed of reading, which torch.sum over 1 GiB measures in the same rounds. Ours and theirs run in turn; the table has the fastest.
"""
import argparse
import json
import os
import pathlib
import tempfile
import time

from fine_tuning import make_model
from peer_rounds import checked

PROMPT = 64
PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[6])).eval()
prompts = torch.tensor(json.load(open(sys.argv[3])))[: int(sys.argv[4])]
def seconds(new):
    begin = time.perf_counter()
    out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
    return time.perf_counter() - begin, out[:, prompts.shape[1]:].tolist()
seconds(2)
new = int(sys.argv[5])
first, last = seconds(1), seconds(new + 1)
big = torch.ones(2**28)
begin = time.perf_counter(); big.sum(); speed = 2**30 / (time.perf_counter() - begin)
print("RESULT", json.dumps({"rate": len(prompts) * new / (last[0] - first[0]), "tokens": last[1], "read": speed,
                            "bytes": sum(p.numel() * p.element_size() for n, p in model.named_parameters() if "embed_tokens" not in n)}))
"""


def own(options, base, prompts, batch, folder):
    """Tokens a second, and the tokens."""
    rows = folder / f"prompts.{batch}.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts[:batch]), encoding="utf-8")

    def seconds(new):
        out = folder / f"out.{batch}.{new}.jsonl"
        out.unlink(missing_ok=True)
        (folder / "generate.ini").write_text(
            f"[run]\ntask = generate\noutput = {folder}/runs\noverwrite = true\n[model]\npath = {base}\n[precision]\ncompute = {options.compute}\n"
            f"[generate]\nprompts = {rows}\noutput = {out}\nmax_new_tokens = {new}\ntemperature = 0\nids = true\n"
            f"[batch]\nsequence_length = {PROMPT + options.new + 8}\nmicro = {batch}\n", encoding="utf-8")
        begin = time.perf_counter()
        checked([options.llmtrain, folder / "generate.ini"])
        return time.perf_counter() - begin, [json.loads(line)["ids"] for line in out.read_text(encoding="utf-8").splitlines()]

    first, last = seconds(1), seconds(options.new + 1)
    return batch * options.new / (last[0] - first[0]), last[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain", type=pathlib.Path), parser.add_argument("data", type=pathlib.Path), parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3), parser.add_argument("--batches", default="1,32")
    parser.add_argument("--new", type=int, default=96), parser.add_argument("--compute", default="fp32", choices=["fp32", "bf16"])
    options = parser.parse_args()
    threads = os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="generation."))
    base = folder / "base"
    make_model(options.python, options.data / "tokenizer/gpt2", base, layers=12, width=768, inner=2048)
    text = (options.data / "text/novels/train.txt").read_text(encoding="utf-8")
    encode = ("import json, sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
              f"ids = t(open(sys.argv[2]).read())['input_ids']; n = {PROMPT};"
              "rows = [ids[i * n:(i + 1) * n] for i in range(400)]; texts = [t.decode(r) for r in rows];"
              "keep = [(r, x) for r, x in zip(rows, texts) if t(x)['input_ids'] == r and x.strip() == x][:64];"
              "json.dump([r for r, _ in keep], open(sys.argv[3], 'w')); json.dump([x for _, x in keep], open(sys.argv[4], 'w'))")
    (folder / "text").write_text(text[:200000], encoding="utf-8")
    checked([options.python, "-c", encode, base, folder / "text", folder / "ids.json", folder / "texts.json"])
    prompts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[options.compute]
    batches = [int(batch) for batch in options.batches.split(",")]
    best, equal, reading, weights = {}, {}, 0, 0
    for _ in range(options.rounds):
        for batch in batches:
            output = checked([options.python, "-c", PEER, base, threads, folder / "ids.json", batch, options.new, dtype])["output"]
            peer = json.loads(output.split("RESULT", 1)[1].splitlines()[0])
            rate, tokens = own(options, base, prompts, batch, folder)
            pairs = [(a, b) for x, y in zip(tokens, peer["tokens"]) for a, b in zip(x, y)]
            equal[batch] = sum(a == b for a, b in pairs) / len(pairs)
            reading, weights = max(reading, peer["read"]), peer["bytes"]
            known = best.get(batch, (0, 0))
            best[batch] = max(known[0], rate), max(known[1], peer["rate"])
    print(f"{'batch':>5} {'tokens/s':>9} {'Transformers':>12} {'ratio':>6} {'of bound':>9} {'equal tokens':>12}")
    for batch in batches:
        mine, theirs = best[batch]
        print(f"{batch:5} {mine:9.1f} {theirs:12.1f} {mine / theirs:6.2f} {mine / batch * weights / reading:9.2f} {equal[batch]:12.3f}")
    print(f"reading {reading / 1e9:.1f} GB/s, weights {weights / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
