"""A plain decoder in PyTorch, written for this project: the reference for variants that Hugging Face does not have, and
an independent opinion on those it has. One document at a time, no cleverness, any precision."""

import torch
import torch.nn.functional as F


def normalise(p, name, x, s):
    if s.norm == "layernorm":
        return F.layer_norm(x, (s.d_model,), p[f"{name}.weight"], p.get(f"{name}.bias"), s.norm_epsilon)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.norm_epsilon) * p[f"{name}.weight"]


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def rotate(x, s):
    """Rotary position embedding in the half-split order; x is [T, heads, head_dim], row t has position t."""
    half = s.head_dim // 2
    inverse = s.rope_theta ** (-torch.arange(half, dtype=torch.float64) * 2.0 / s.head_dim)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * inverse
    cos, sin = angle.cos().to(x.dtype)[:, None, :], angle.sin().to(x.dtype)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v, s):
    """q [T, H, D], k and v [T, K, D]; key j is visible to query i iff i - window < j <= i."""
    t = q.shape[0]
    k = k.repeat_interleave(s.n_heads // s.n_kv_heads, 1)
    v = v.repeat_interleave(s.n_heads // s.n_kv_heads, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / s.head_dim**0.5
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    visible = distance >= 0
    if s.sliding_window:
        visible &= distance < s.sliding_window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(t, -1)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


def attend(p, block, x, s):
    q_size, kv_size = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    if s.family == "gpt2":
        q, k, v = linear(p, f"{block}.attn.c_attn", x).split((q_size, kv_size, kv_size), -1)
        output = f"{block}.attn.c_proj"
    else:
        q, k, v = (linear(p, f"{block}.self_attn.{n}_proj", x) for n in "qkv")
        output = f"{block}.self_attn.o_proj"
    q, k, v = (y.reshape(x.shape[0], -1, s.head_dim) for y in (q, k, v))
    if s.positions == "rope":
        q, k = rotate(q, s), rotate(k, s)
    return linear(p, output, attention(q, k, v, s))


def feed_forward(p, block, x, s):
    act = ACTIVATIONS[s.activation]
    if s.family == "gpt2":
        return linear(p, f"{block}.mlp.c_proj", act(linear(p, f"{block}.mlp.c_fc", x)))
    gate, up = linear(p, f"{block}.mlp.gate_proj", x), linear(p, f"{block}.mlp.up_proj", x)
    return linear(p, f"{block}.mlp.down_proj", act(gate) * up)


def decode(p, s, ids):
    """Logits [T, V] of one document; p maps Hugging Face names to tensors, matrices (out, in)."""
    gpt2 = s.family == "gpt2"
    table = p["transformer.wte.weight" if gpt2 else "model.embed_tokens.weight"]
    x = table[ids]
    if s.positions == "learned":
        x = x + p["transformer.wpe.weight"][: len(ids)]
    for i in range(s.n_layers):
        block = f"transformer.h.{i}" if gpt2 else f"model.layers.{i}"
        norm_1, norm_2 = ("ln_1", "ln_2") if gpt2 else ("input_layernorm", "post_attention_layernorm")
        if s.pre_norm:
            x = x + attend(p, block, normalise(p, f"{block}.{norm_1}", x, s), s)
            x = x + feed_forward(p, block, normalise(p, f"{block}.{norm_2}", x, s), s)
        else:  # GPT-1: the norm follows the sum, and no final norm is needed
            x = normalise(p, f"{block}.{norm_1}", x + attend(p, block, x, s), s)
            x = normalise(p, f"{block}.{norm_2}", x + feed_forward(p, block, x, s), s)
    if s.final_norm:
        x = normalise(p, "transformer.ln_f" if gpt2 else "model.norm", x, s)
    return x @ p.get("lm_head.weight", table).T
