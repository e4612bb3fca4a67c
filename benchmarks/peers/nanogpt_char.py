"""The peer of benchmarks/char_model.sh: nanoGPT's CPU setting for a character model, written anew in PyTorch.

4 layers, 4 heads, width 128, context 64, batch 12, 2000 steps of AdamW (betas .9 / .99, decay .1 on matrices, clip 1),
learning rate 1e-3 -> 1e-4 by a cosine after 100 steps of warm-up, no biases, no dropout, tied head, GPT-2 initialisation,
windows drawn at random. The last tenth of the characters is validation; its loss is over all of it, not a sample.

    python nanogpt_char.py TEXT [--compile] [--bf16] [--steps N] [--threads N] [--seed N] [--json FILE]
"""

import argparse
import contextlib
import json
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12
PEAK, FLOOR, WARMUP = 1e-3, 1e-4, 100


def seconds_since_start():
    """Of this process, imports included (Linux)."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def allocator():
    """Whose malloc this process has."""
    with open("/proc/self/maps") as f:
        names = {os.path.basename(line.split()[-1]) for line in f if "malloc" in line}
    return " ".join(sorted(names)) or "glibc"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm_2 = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class CharModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def learning_rate(step, steps):
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return FLOOR + 0.5 * (1 + math.cos(math.pi * progress)) * (PEAK - FLOOR)


@torch.no_grad()
def whole_loss(model, data):
    """Mean over every target of data, in consecutive windows (the last one shorter)."""
    total, windows = 0.0, (len(data) - 1) // CONTEXT
    ids = data[: windows * CONTEXT].view(windows, CONTEXT)
    targets = data[1 : windows * CONTEXT + 1].view(windows, CONTEXT)
    for a, b in zip(ids.split(256), targets.split(256)):
        total += model(a, b).item() * b.numel()
    rest = len(data) - 1 - windows * CONTEXT
    if rest:
        total += model(data[None, -rest - 1 : -1], data[None, -rest:]).item() * rest
    return total / (len(data) - 1)


def main():
    parser = argparse.ArgumentParser(description="nanoGPT's character model on the CPU, in PyTorch")
    parser.add_argument("text")
    parser.add_argument("--compile", action="store_true", help="torch.compile the training step")
    parser.add_argument("--bf16", action="store_true", help="torch.autocast to bfloat16")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    with open(args.text, encoding="utf-8", newline="") as f:
        text = f.read()
    ids = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([ids[c] for c in text])
    cut = int(0.9 * len(data))
    train, validation = data[:cut], data[cut:]

    model = CharModel(len(ids))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=PEAK, betas=(0.9, 0.99), fused=True)
    step_model = torch.compile(model) if args.compile else model
    precision = torch.autocast("cpu", dtype=torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(ids)}, "
          f"{torch.get_num_threads()} threads, {'bf16' if args.bf16 else 'fp32'}, "
          f"{'compiled' if args.compile else 'eager'}, torch {torch.__version__}")

    warm = min(10, args.steps // 2)  # untimed steps: allocation, compilation
    begin = time.perf_counter()
    for step in range(args.steps):
        if step == warm:
            begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        start = torch.randint(len(train) - CONTEXT, (BATCH,))
        window = train[start[:, None] + torch.arange(CONTEXT + 1)]
        with precision:
            loss = step_model(window[:, :-1], window[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {seconds_since_start():.1f} s", flush=True)
    speed = (args.steps - warm) * BATCH * CONTEXT / (time.perf_counter() - begin)
    with precision:
        result = whole_loss(model, validation)
    facts = dict(tokens_per_second=speed, validation_loss=result, seconds=seconds_since_start(),
                 torch=torch.__version__, malloc=allocator())
    print("{tokens_per_second:.0f} tokens/s, validation loss {validation_loss:.4f}, {seconds:.1f} s".format(**facts))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(facts, f)


if __name__ == "__main__":
    main()
