"""A plain decoder in PyTorch, written for this project: the reference for variants that Hugging Face does not have, and
an independent opinion on those it has. One document at a time, no cleverness, any precision."""

import dataclasses
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F


def normalise(p, name, x, s):
    if s.norm == "layernorm":
        return F.layer_norm(x, (s.d_model,), p[f"{name}.weight"], p.get(f"{name}.bias"), s.norm_epsilon)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.norm_epsilon) * (
        p[f"{name}.weight"] + (1 if s.zero_centered_norm else 0))


def normalise_heads(p, name, x, s):
    """RMSNorm of x [T, heads, head_dim], each head for itself or all together."""
    squares = x.pow(2).mean((-2, -1) if s.qk_norm_whole else -1, keepdim=True)
    weight = p[f"{name}.weight"].reshape(-1, s.head_dim) + (1 if s.zero_centered_norm else 0)
    return x * torch.rsqrt(squares + s.norm_epsilon) * weight


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def frequencies(s, length):
    """Inverse frequencies of a sequence of this length, from the published formulas, and the factor of cos and sin."""
    dim = s.rotary_dim
    index = torch.arange(dim // 2, dtype=torch.float64)
    inverse = s.rope_theta ** (-2.0 * index / dim)
    rope = s.rope_parameters()
    kind, factor, original = rope["rope_type"], rope.get("factor"), rope.get("original_max_position_embeddings")
    if factor is None and original:
        factor = s.max_seq_len / original
    if kind == "linear":
        return inverse / factor, 1.0
    if kind == "dynamic":
        longest = max(length, s.max_seq_len)
        theta = s.rope_theta * (factor * longest / s.max_seq_len - (factor - 1)) ** (dim / (dim - 2))
        return theta ** (-2.0 * index / dim), 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        out = []
        for f in inverse.tolist():
            wavelength = 2 * math.pi / f
            if wavelength > original / low:
                out.append(f / factor)
            elif wavelength < original / high:
                out.append(f)
            else:
                smooth = (original / wavelength - low) / (high - low)
                out.append((1 - smooth) * f / factor + smooth * f)
        return torch.tensor(out, dtype=torch.float64), 1.0
    if kind == "yarn":
        def where(turns):  # the index of the frequency that turns so often over the original length
            return dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(s.rope_theta))

        low, high = where(rope.get("beta_fast", 32)), where(rope.get("beta_slow", 1))
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        stretched = ((index - low) / (high - low)).clamp(0, 1)
        scale = lambda m: 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0
        attention = scale(1)
        if "mscale" in rope:
            attention = scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
        return inverse / factor * stretched + inverse * (1 - stretched), rope.get("attention_factor", attention)
    if kind == "longrope":
        factors = rope["long_factor" if length > original else "short_factor"]
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return inverse / torch.tensor(factors, dtype=torch.float64), rope.get("attention_factor", attention)
    return inverse, 1.0


def rotate(x, s, local=False):
    """Rotary position embedding in the half-split order; x is [T, heads, head_dim], row t has position t."""
    if local:
        s = dataclasses.replace(s, rope_theta=s.rope_local_theta, rope_scaling="none")
    half = s.rotary_dim // 2
    inverse, factor = frequencies(s, x.shape[0])
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * inverse
    cos, sin = ((factor * y).to(x.dtype)[:, None, :] for y in (angle.cos(), angle.sin()))
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]), -1)


def attention(q, k, v, s, window, sinks=None):
    """q [T, H, D], k and v [T, K, D]; key j is visible to query i iff i - window < j <= i. Each head's sink is one more
    score, which takes its share and gives nothing."""
    t = q.shape[0]
    k = k.repeat_interleave(s.n_heads // s.n_kv_heads, 1)
    v = v.repeat_interleave(s.n_heads // s.n_kv_heads, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / (s.query_pre_attn_scalar or s.head_dim)**0.5
    if s.attention_softcap:
        scores = s.attention_softcap * torch.tanh(scores / s.attention_softcap)
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    visible = distance >= 0
    if window:
        visible &= distance < window
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, t, 1)), -1)
    weights = scores.softmax(-1)[..., :t]
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(t, -1)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def latent_attention(p, name, x, s):
    """Queries, keys and values come of low-rank products; only a part of each head is rotated, and all heads share the
    rotated part of a key."""
    t, nope = x.shape[0], s.qk_nope_head_dim
    latent = dataclasses.replace(s, norm_epsilon=s.latent_norm_epsilon)

    def rotated(y):
        return rotate(torch.cat((y[..., 0::2], y[..., 1::2]), -1) if s.rope_interleave else y, s)

    if s.q_lora_rank:
        low = normalise(p, f"{name}.q_a_layernorm", linear(p, f"{name}.q_a_proj", x), latent)
        q = linear(p, f"{name}.q_b_proj", low)
    else:
        q = linear(p, f"{name}.q_proj", x)
    q = q.reshape(t, s.n_heads, -1)
    low, k_rope = linear(p, f"{name}.kv_a_proj_with_mqa", x).split((s.kv_lora_rank, s.qk_rope_head_dim), -1)
    kv = linear(p, f"{name}.kv_b_proj", normalise(p, f"{name}.kv_a_layernorm", low, latent)).reshape(t, s.n_heads, -1)
    q = torch.cat((q[..., :nope], rotated(q[..., nope:])), -1)
    k = torch.cat((kv[..., :nope], rotated(k_rope[:, None]).expand(-1, s.n_heads, -1)), -1)
    rope = s.rope_parameters()
    if "mscale_all_dim" in rope:
        q = q * (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2
    return linear(p, f"{name}.o_proj", attention(q, k, kv[..., nope:], s, 0))


def attend(p, block, x, s, layer):
    window = s.window(layer)
    if s.kv_lora_rank:
        return latent_attention(p, f"{block}.self_attn", x, s)
    q_size, kv_size = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    if s.grouped:
        name = f"{block}.{'attention' if s.family == 'gpt_neox' else 'self_attention'}"
        groups = linear(p, f"{name}.query_key_value", x).reshape(x.shape[0], s.n_kv_heads, -1, s.head_dim)
        q, k, v = groups[:, :, :-2], groups[:, :, -2], groups[:, :, -1]
        output = f"{name}.dense"
    elif s.family == "gpt2":
        q, k, v = linear(p, f"{block}.attn.c_attn", x).split((q_size, kv_size, kv_size), -1)
        output = f"{block}.attn.c_proj"
    else:
        if s.family == "phi3":
            q, k, v = linear(p, f"{block}.self_attn.qkv_proj", x).split((q_size, kv_size, kv_size), -1)
        else:
            q, k, v = (linear(p, f"{block}.self_attn.{n}_proj", x) for n in "qkv")
        output = f"{block}.self_attn.o_proj"
    q, k, v = (y.reshape(x.shape[0], -1, s.head_dim) for y in (q, k, v))
    if s.qk_norm:
        q, k = (normalise_heads(p, f"{block}.self_attn.{n}_norm", y, s) for n, y in (("q", q), ("k", k)))
    if s.has_rope(layer):
        local = bool(s.rope_local_theta and window)
        q, k = rotate(q, s, local), rotate(k, s, local)
    sinks = p[f"{block}.self_attn.sinks"] if s.attention_sinks else None
    return linear(p, output, attention(q, k, v, s, window, sinks))


def gated(p, name, x, s):
    hidden = ACTIVATIONS[s.activation](linear(p, f"{name}.gate_proj", x)) * linear(p, f"{name}.up_proj", x)
    return linear(p, f"{name}.down_proj", hidden)


def feed_forward(p, block, x, s):
    act = ACTIVATIONS[s.activation]
    if s.family == "gpt2":
        return linear(p, f"{block}.mlp.c_proj", act(linear(p, f"{block}.mlp.c_fc", x)))
    for up, down in (("c_fc", "c_proj"), ("dense_h_to_4h", "dense_4h_to_h")):
        if f"{block}.mlp.{up}.weight" in p:
            return linear(p, f"{block}.mlp.{down}", act(linear(p, f"{block}.mlp.{up}", x)))
    if s.family == "phi3":
        gate, up = linear(p, f"{block}.mlp.gate_up_proj", x).split((s.d_ff, s.d_ff), -1)
        return linear(p, f"{block}.mlp.down_proj", act(gate) * up)
    return gated(p, f"{block}.mlp", x, s)


class Routing(NamedTuple):
    """Of one document in one layer with experts."""

    logits: torch.Tensor  # [T, E]
    chosen: list  # of every token, its experts
    margin: float  # the smallest relative distance of a chosen score to the best one left out


def best(values, number):
    """Indices of the largest `number` values, and the relative distance of the smallest of them to the next."""
    order = sorted(range(len(values)), key=lambda i: -values[i])
    if number == len(values):
        return order, math.inf
    last, following = values[order[number - 1]], values[order[number]]
    return order[:number], (last - following) / abs(last)


def choose(scores, s):
    """The experts of one token with these scores (a list), and the margin of the choice."""
    size = s.n_experts // s.n_expert_groups
    groups = [scores[i:i + size] for i in range(0, s.n_experts, size)]
    rated = [max(g) if s.router_score == "softmax" else sum(sorted(g)[-2:]) for g in groups]
    allowed, margin = best(rated, s.groups_per_token)
    candidates = [g * size + i for g in allowed for i in range(size)]
    places, next_margin = best([scores[e] for e in candidates], s.experts_per_token)
    return [candidates[i] for i in places], min(margin, next_margin)


def expert(p, name, e, x, s):
    """What expert e makes of one token."""
    if s.activation != "swiglu_oai":
        gate, up, down = (f"{name}.experts.{e}.{m}" for m in s.expert_matrices)
        return linear(p, down, ACTIVATIONS[s.activation](linear(p, gate, x)) * linear(p, up, x))
    both = x @ p[f"{name}.experts.gate_up_proj"][e] + p[f"{name}.experts.gate_up_proj_bias"][e]
    gate, up = both[0::2], both[1::2]
    if s.expert_limit:
        gate, up = gate.clamp(max=s.expert_limit), up.clamp(-s.expert_limit, s.expert_limit)
    hidden = (up + 1) * gate * (1.702 * gate).sigmoid()
    return hidden @ p[f"{name}.experts.down_proj"][e] + p[f"{name}.experts.down_proj_bias"][e]


def experts(p, name, x, s):
    """The experts' layer, one token after the other."""
    logits = linear(p, f"{name}.{s.router}", x)
    scores = logits.softmax(-1) if s.router_score == "softmax" else logits.sigmoid()
    preference = scores + p.get(f"{name}.gate.e_score_correction_bias", torch.zeros(s.n_experts))
    rows, chosen, margins = [], [], []
    for token in range(x.shape[0]):
        mine, margin = choose(preference[token].tolist(), s)
        weights = [scores[token, e] for e in mine]
        if s.norm_topk:
            total = sum(weights)
            weights = [w / total for w in weights]
        row = 0
        for e, weight in zip(mine, weights):
            row = row + s.routed_scale * weight * expert(p, name, e, x[token], s)
        rows.append(row)
        chosen.append(mine)
        margins.append(margin)
    out = torch.stack(rows)
    if s.d_ff_shared:
        shared = gated(p, f"{name}.{s.shared_expert}", x, s)
        if s.shared_gate:
            shared = shared * linear(p, f"{name}.shared_expert_gate", x).sigmoid()
        out = out + shared
    return out, Routing(logits, chosen, min(margins))


def balance_loss(s, router):
    """Number of experts times the sum over experts of (tokens sent to it / tokens) * (mean probability). A token counts
    once in every layer."""
    tokens, sent, probability = 0, torch.zeros(s.n_experts), 0
    for routing in router:
        tokens += len(routing.chosen)
        probability = probability + routing.logits.softmax(-1).sum(0)
        for mine in routing.chosen:
            sent[mine] += 1
    return s.n_experts * ((sent / tokens).to(probability.dtype) * probability / tokens).sum()


def z_loss(logits):
    """Mean over tokens and layers of squared logarithms of sums of exponentials; logits [tokens, E] of every layer."""
    return torch.cat([x.to(torch.promote_types(x.dtype, torch.float32)) for x in logits]).logsumexp(-1).pow(2).mean()


def decode(p, s, ids, router=None):
    """Logits [T, V] of one document; p maps Hugging Face names to tensors, matrices (out, in). The list `router` is
    appended with the Routing of every layer with experts."""
    gpt2 = s.family == "gpt2"
    neox = s.family == "gpt_neox"
    root, blocks, embedding, final = {
        "gpt2": ("transformer", "h", "wte", "ln_f"),
        "falcon": ("transformer", "h", "word_embeddings", "ln_f"),
        "gpt_neox": ("gpt_neox", "layers", "embed_in", "final_layer_norm"),
    }.get(s.family, ("model", "layers", "embed_tokens", "norm"))
    table = p[f"{root}.{embedding}.weight"]
    x = table[ids] * s.embedding_scale
    if s.positions == "learned":
        x = x + p["transformer.wpe.weight"][: len(ids)]
    for i in range(s.n_layers):
        block = f"{root}.{blocks}.{i}"
        norm_1, norm_2 = ("ln_1", "ln_2") if gpt2 else ("input_layernorm", "post_attention_layernorm")
        if f"{block}.ln_attn.weight" in p:
            norm_1, norm_2 = "ln_attn", "ln_mlp"
        if s.shared_norm:
            norm_2 = norm_1
        if s.has_experts(i):
            x = x + attend(p, block, normalise(p, f"{block}.{norm_1}", x, s), s, i)
            y, routing = experts(p, f"{block}.{s.experts_block}", normalise(p, f"{block}.{norm_2}", x, s), s)
            x = x + y
            if router is not None:
                router.append(routing)
        elif s.parallel_residual:  # GPT-NeoX, Falcon
            y = attend(p, block, normalise(p, f"{block}.{norm_1}", x, s), s, i)
            x = x + y + feed_forward(p, block, normalise(p, f"{block}.{norm_2}", x, s), s)
        elif s.sandwich_norm:  # Gemma 2, and OLMo 2 without the norms of inputs
            before = normalise if s.input_norm else lambda _p, _name, y, _s: y
            y = attend(p, block, before(p, f"{block}.{norm_1}", x, s), s, i)
            x = x + normalise(p, f"{block}.post_attention_layernorm", y, s)
            y = feed_forward(p, block, before(p, f"{block}.pre_feedforward_layernorm", x, s), s)
            x = x + normalise(p, f"{block}.post_feedforward_layernorm", y, s)
        elif s.pre_norm:
            x = x + s.residual_multiplier * attend(p, block, normalise(p, f"{block}.{norm_1}", x, s), s, i)
            x = x + s.residual_multiplier * feed_forward(p, block, normalise(p, f"{block}.{norm_2}", x, s), s)
        else:  # GPT-1: the norm follows the sum, and no final norm is needed
            x = normalise(p, f"{block}.{norm_1}", x + attend(p, block, x, s, i), s)
            x = normalise(p, f"{block}.{norm_2}", x + feed_forward(p, block, x, s), s)
    if s.final_norm:
        x = normalise(p, f"{root}.{final}", x, s)
    logits = x @ p.get("embed_out.weight" if neox else "lm_head.weight", table).T / s.logits_scaling
    return s.final_softcap * torch.tanh(logits / s.final_softcap) if s.final_softcap else logits
