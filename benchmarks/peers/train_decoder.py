"""The peer of benchmarks/training.py: trains a GPT-2 or Llama decoder in PyTorch, on the CPU or a GPU.

    python train_decoder.py make FOLDER --model NAME --rows N --length T
    python train_decoder.py train FOLDER --steps N --batch B [--accumulate A] [--precision fp32|autocast|bf16]
                            [--compile] [--threads N] [--device cpu|cuda] [--attention flash|cudnn] --json FILE

`make` writes a Hugging Face folder with random weights and rows.jsonl, N rows of T + 1 random token ids. `train` takes
the rows in order, B for a forward pass. bf16 keeps weights, gradients and moments in bf16; autocast keeps them in fp32.
--attention forces a backend of scaled_dot_product_attention; without it PyTorch chooses.
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
from safetensors.torch import load_file, save_file

MODELS = {
    "gpt2-124m": dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=50257, n_positions=1024,
                      n_embd=768, n_layer=12, n_head=12, n_inner=3072, activation_function="gelu_new",
                      layer_norm_epsilon=1e-5, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama-300m": dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=32000, hidden_size=1024,
                       num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8, head_dim=64,
                       intermediate_size=2816, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0,
                       max_position_embeddings=2048, tie_word_embeddings=False, attention_bias=False, mlp_bias=False),
}
MODELS["gpt2-350m"] = dict(MODELS["gpt2-124m"], n_embd=1024, n_layer=24, n_head=16, n_inner=4096)
MODELS["gpt2-1558m"] = dict(MODELS["gpt2-124m"], n_embd=1600, n_layer=48, n_head=25, n_inner=6400)
MODELS["gpt2-tiny"] = dict(MODELS["gpt2-124m"], vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=4,
                           n_inner=256)
MODELS["llama-tiny"] = dict(MODELS["llama-300m"], vocab_size=500, hidden_size=64, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=176)
ADAMW = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP = 0.1, 1.0


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads = c["n_embd"], c["n_head"]
        self.ln_1 = nn.LayerNorm(width, eps=c["layer_norm_epsilon"])
        self.attn = nn.ModuleDict(dict(c_attn=nn.Linear(width, 3 * width), c_proj=nn.Linear(width, width)))
        self.ln_2 = nn.LayerNorm(width, eps=c["layer_norm_epsilon"])
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(width, c["n_inner"]), c_proj=nn.Linear(c["n_inner"], width)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attn.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab_size"], c["n_embd"])
        self.wpe = nn.Embedding(c["n_positions"], c["n_embd"])
        self.h = nn.ModuleList(Gpt2Block(c) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.dim = c["hidden_size"], c["head_dim"]
        queries, keys = c["num_attention_heads"] * self.dim, c["num_key_value_heads"] * self.dim
        linear = lambda n, m: nn.Linear(n, m, bias=False)
        self.input_layernorm = nn.RMSNorm(width, eps=c["rms_norm_eps"])
        self.self_attn = nn.ModuleDict(dict(q_proj=linear(width, queries), k_proj=linear(width, keys),
                                            v_proj=linear(width, keys), o_proj=linear(queries, width)))
        self.post_attention_layernorm = nn.RMSNorm(width, eps=c["rms_norm_eps"])
        inner = c["intermediate_size"]
        self.mlp = nn.ModuleDict(dict(gate_proj=linear(width, inner), up_proj=linear(width, inner),
                                      down_proj=linear(inner, width)))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y, a = self.input_layernorm(x), self.self_attn
        q, k, v = (p(y).view(b, t, -1, self.dim).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj))
        turn = lambda z: z * cos + torch.cat((-z[..., self.dim // 2:], z[..., : self.dim // 2]), -1) * sin
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + a.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        y, m = self.post_attention_layernorm(x), self.mlp
        return x + m.down_proj(F.silu(m.gate_proj(y)) * m.up_proj(y))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.ModuleDict(dict(
            embed_tokens=nn.Embedding(c["vocab_size"], c["hidden_size"]),
            layers=nn.ModuleList(LlamaBlock(c) for _ in range(c["num_hidden_layers"])),
            norm=nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])))
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        frequencies = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
        angles = torch.outer(torch.arange(c["max_position_embeddings"]).double(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids, targets):
        x, t = self.model.embed_tokens(ids), ids.shape[1]
        cos, sin = self.cos[:t].to(x.dtype), self.sin[:t].to(x.dtype)
        for block in self.model.layers:
            x = block(x, cos, sin)
        return F.cross_entropy(self.lm_head(self.model.norm(x)).flatten(0, 1).float(), targets.flatten())


def build(config):
    return (Gpt2 if config["model_type"] == "gpt2" else Llama)(config)


def transposed(config, name):
    """GPT-2's files hold the matrices of its blocks as [in, out]."""
    return config["model_type"] == "gpt2" and name.startswith("h.") and name.endswith("weight") and "ln_" not in name


def make(args):
    config = MODELS[args.model]
    torch.manual_seed(1)
    model = build(config)
    layers = config.get("n_layer") or config["num_hidden_layers"]
    tensors = {}
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.ndim == 2:
                residual = name.endswith(("c_proj.weight", "o_proj.weight", "down_proj.weight"))
                p.normal_(0.0, 0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                p.zero_()
        tensors[name] = (p.t() if transposed(config, name) else p).detach().contiguous()
    os.makedirs(args.folder, exist_ok=True)
    save_file(tensors, os.path.join(args.folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(args.folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(args.folder, "rows.jsonl"), "w") as f:
        for row in torch.randint(config["vocab_size"], (args.rows, args.length + 1)).tolist():
            f.write(json.dumps({"input_ids": row}) + "\n")


def allocator():
    """Whose malloc this process has."""
    with open("/proc/self/maps") as f:
        names = {os.path.basename(line.split()[-1]) for line in f if "malloc" in line}
    return " ".join(sorted(names)) or "glibc"


def train(args):
    if args.threads:
        torch.set_num_threads(args.threads)
    with open(os.path.join(args.folder, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(args.folder, "rows.jsonl")) as f:
        rows = torch.tensor([json.loads(line)["input_ids"] for line in f])
    model = build(config)
    stored = load_file(os.path.join(args.folder, "model.safetensors"))
    model.load_state_dict({k: v.t() if transposed(config, k) else v for k, v in stored.items()})
    del stored
    model, rows = model.to(args.device), rows.to(args.device)
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)],
                                  fused=True, **ADAMW)
    run = torch.compile(model) if args.compile else model
    precision = torch.autocast(args.device, torch.bfloat16) if args.precision == "autocast" else contextlib.nullcontext()
    attention = contextlib.nullcontext()
    if args.attention:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        attention = sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[args.attention])
    with attention:
        losses, seconds = run_steps(args, model, run, rows, optimizer, precision)
    with open(args.json, "w") as f:
        json.dump(dict(losses=losses, seconds=seconds, torch=torch.__version__, malloc=allocator()), f)


def run_steps(args, model, run, rows, optimizer, precision):
    losses, seconds, at = [], [], 0
    for _ in range(args.steps):
        begin = time.perf_counter()
        total = 0.0
        for _ in range(args.accumulate):
            batch = rows[at:at + args.batch]
            at += args.batch
            with precision:
                loss = run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) / args.accumulate
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total.item())
        if args.device == "cuda":
            torch.cuda.synchronize()
        if len(losses) == 1:
            print("step 1 is done", flush=True)
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.add_argument("--model", choices=MODELS, required=True)
    making.add_argument("--rows", type=int, required=True)
    making.add_argument("--length", type=int, required=True)
    training = commands.add_parser("train")
    training.add_argument("folder")
    training.add_argument("--steps", type=int, required=True)
    training.add_argument("--batch", type=int, required=True)
    training.add_argument("--accumulate", type=int, default=1)
    training.add_argument("--precision", choices=["fp32", "autocast", "bf16"], default="fp32")
    training.add_argument("--compile", action="store_true")
    training.add_argument("--threads", type=int, default=0)
    training.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    training.add_argument("--attention", choices=["flash", "cudnn"])
    training.add_argument("--json", required=True)
    args = parser.parse_args()
    make(args) if args.command == "make" else train(args)


if __name__ == "__main__":
    main()
