#!/usr/bin/env python3
"""qlora_steps.py LLMTRAIN DATA PYTHON [--rounds N] [--layers N] [--tokens N,N] [--precision T,T] [--peer]: seconds a step of
LoRA beside a base in the compute type, in nf4 with double quantisation and in int8.

A model of Llama's shape with random weights (hidden size 1024, 18 layers: some 300 million) is tuned on text, rows of 512 tokens.
One micro-batch is a step. --peer: also PyTorch with PEFT and bitsandbytes' layers of 4 bits, on the same tokens a step (PYTHON has
torch, transformers, peft and bitsandbytes). Cases run in turn, each in every round; the table has the fastest step of all rounds;
progress goes to stderr.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

from fine_tuning import MODEL, run

STORAGES = {"lora": [], "nf4": ["quantization.bits=4", "quantization.type=nf4", "quantization.double=true"], "int8": ["quantization.bits=8"]}
DECK = """[run]
task = pretrain
finetuning = lora
[data]
validation_fraction = 0
[batch]
sequence_length = 512
[lora]
r = 16
alpha = 32
target_modules = q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj
[schedule]
learning_rate = 1e-4
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
"""
PEER = """
import sys, time, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
base, rows, steps, precision = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, quantization_config=quantization, device_map="cpu")
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
best = 1e9
for step in range(steps):
    ids = torch.randint(3, 30000, (rows, 512))
    begin = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step > 0: best = min(best, time.perf_counter() - begin)
print("RESULT", best, float(loss))
"""


def own_step(options, folder, rows, precision, keys):
    command = [options.llmtrain, folder / "deck.ini", f"run.output={folder}", "run.name=run", "run.overwrite=true",
               f"run.max_steps={options.steps}", f"model.path={folder / 'base'}", f"precision.compute={precision}", f"batch.micro={rows}",
               f"batch.global={rows}", f"data.train={options.data / 'text/novels/train.txt'}", *keys]
    run(*command)
    lines = [json.loads(line) for line in open(folder / "run/metrics.jsonl", encoding="utf-8")]
    lines = [line for line in lines if "grad_norm" in line]
    return min(b["wall_time"] - a["wall_time"] for a, b in zip(lines, lines[1:])), lines[-1]["loss"]


def peer_step(options, folder, rows, precision):
    text, _ = run(options.python, "-c", PEER, folder / "base", rows, options.steps, precision)
    seconds, loss = text.split("RESULT", 1)[1].split()[:2]
    return float(seconds), float(loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain"), parser.add_argument("data", type=pathlib.Path), parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3), parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=18), parser.add_argument("--tokens", default="4096,512")
    parser.add_argument("--precision", default="bf16,fp32"), parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="qlora_steps."))
    model = MODEL.replace("num_hidden_layers=18", f"num_hidden_layers={options.layers}")
    run(options.python, "-c", model, options.data / "tokenizer/llama2", folder / "base")
    (folder / "deck.ini").write_text(DECK)
    print(f"{'precision':<9} {'tokens':>6} " + "".join(f"{name + ' s':>10}" for name in [*STORAGES, "peer nf4"]) + "   over lora")
    for precision in options.precision.split(","):
        for tokens in map(int, options.tokens.split(",")):
            best = {}
            for _ in range(options.rounds):
                for name, keys in STORAGES.items():
                    best.setdefault(name, []).append(own_step(options, folder, tokens // 512, precision, keys)[0])
                if options.peer:
                    best.setdefault("peer nf4", []).append(peer_step(options, folder, tokens // 512, precision)[0])
                print(f"{precision} {tokens} " + "  ".join(f"{name} {times[-1]:.2f}" for name, times in best.items()), file=sys.stderr)
            fastest = {name: min(times) for name, times in best.items()}
            ratios = "  ".join(f"{name} {seconds / fastest['lora']:.2f}" for name, seconds in fastest.items() if name != "lora")
            print(f"{precision:<9} {tokens:>6} " + "".join(f"{seconds:10.2f}" for seconds in fastest.values()) + f"   {ratios}", flush=True)


if __name__ == "__main__":
    main()
